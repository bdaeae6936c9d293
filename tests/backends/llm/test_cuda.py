"""The executor on an NVIDIA GPU; without one the CPU stands in for it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from edgeinfer.backends.llm import cuda
from edgeinfer.errors import NotAvailableError
from edgeinfer.machine.cuda import cuda_devices
from edgeinfer.types import Array
from tests import cuda_emulator, samples

WORKER, ROOT = Path(__file__).with_name("cuda_worker.py"), Path(__file__).parents[3]
NAMES = {
    "types of a GGUF file": 20,
    "another family": 20,
    "norms of rows": 9,
    "narrow groups and minima": 9,
    "long columns": 34,
    "experts": 36,
    "experts of another family": 28,
    "float32": 6,
    "float16": 6,
    "bfloat16": 6,
    "a cache of bytes": 20,
}
USUAL = ("types of a GGUF file", "another family", "long columns", "a cache of bytes")


@pytest.fixture(scope="module")
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Give the logits that a run asks for by their names, and ``behaviour``, of one process."""
    if not cuda_devices() and not cuda_emulator.is_possible():
        pytest.skip("g++ on Linux stands in for CUDA's compiler")
    names = samples.asked(request, "name")
    with_adapters = samples.asked(request, "with_adapters")
    questions = [
        *(("logits", name, NAMES[name]) for name in names),
        *(("adapted", name, 20) for name in with_adapters),
        ("behaviour",),
    ]
    keys = [*names, *(f"{name} with adapters" for name in with_adapters), "behaviour"]
    path = tmp_path_factory.mktemp("cuda") / "questions"
    path.write_bytes(pickle.dumps(questions))
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", str(WORKER), str(path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": places})
    return dict(zip(keys, pickle.loads(path.read_bytes()), strict=True))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_logits_are_those_of_the_definition(name: str, answers: dict[str, Any]) -> None:
    found = answers[name]
    right = found["right"]
    _hold_near(found["found"], right)
    assert found["best"].tolist() == found["found"].argmax(-1).tolist()
    assert np.array_equal(found["single"], found["found"][-len(found["single"]) :])


def _hold_near(found: Array, right: Array) -> None:
    error = np.linalg.norm(found - right, axis=-1) / np.linalg.norm(right, axis=-1)
    # Vectors have 16 bits. A number of the cache that lies between two of float16 may become the
    # other one, and then a few rows are off by more.
    assert np.median(error) < 1e-3
    assert error.max() < 5e-3


@pytest.mark.parametrize(
    "with_adapters",
    [
        pytest.param("experts", marks=pytest.mark.sweep),
        *(pytest.param(n, marks=pytest.mark.slow) for n in USUAL[:2]),
    ],
)
def test_adapters_change_their_tokens_alone(with_adapters: str, answers: dict[str, Any]) -> None:
    """Several and none in one batch; of a model with experts those of attention alone."""
    found = answers[f"{with_adapters} with adapters"]
    for each, right in zip(found["found"], found["right"], strict=True):
        _hold_near(each, right)
    assert found["schedules"] == 0
    assert found["none"]
    assert found["fingerprints"]
    assert found["states"] < 5e-3
    assert found["names"] == ("wide", "odd", "some")
    assert "this model has 3" in found["refused"]


@pytest.fixture(scope="module")
def behaviour(answers: dict[str, Any]) -> dict[str, Any]:
    return dict(answers["behaviour"])


def test_bits_depend_on_a_sequence_alone(behaviour: dict[str, Any]) -> None:
    """Also with a cache that was full of NaN."""
    for cache in ("", "bytes "):
        assert behaviour[f"{cache}schedules"] == 0
        assert behaviour[f"{cache}prefix"] == [True, True]
    assert behaviour["embedded"]


def test_bytes_take_half_of_the_memory(behaviour: dict[str, Any]) -> None:
    """But for a scale and a zero of each token and head: with heads of 32 these are a quarter."""
    usual, small = behaviour["pages"]
    assert small / usual == (32 + 8) / 64


def test_states_are_what_the_head_takes(behaviour: dict[str, Any]) -> None:
    assert behaviour["states"] < 5e-3


def test_a_step_may_want_no_row(behaviour: dict[str, Any]) -> None:
    assert behaviour["none wanted"] == (0, 120)


def test_what_is_outside_is_refused_and_listed(behaviour: dict[str, Any]) -> None:
    said = behaviour["refused"]
    for part in ("tokens beyond 0 to 119", "positions beyond 0 to 95", "rows beyond 0 to 1"):
        assert part in said["outside"]
    assert "table with holes" in said["holes"]
    assert "pages beyond 0 to 47" in said["beyond"]
    assert "97 tokens of 1 to 96" in said["many"]
    assert "int64 where int32" in said["wide"]
    assert "closed" in behaviour["closed"]


def test_code_of_a_generation_runs_on_its_later_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cuda_devices", lambda: (object(),))

    def on(capability: str, *names: str) -> str:
        monkeypatch.setattr(cuda, "compute_capability", lambda: capability)
        return cuda.architecture(names)

    assert on("9.0", "sm_80", "sm_90") == "sm_90"
    assert on("8.9", "sm_80", "sm_86", "sm_90") == "sm_86"
    assert on("12.1", "sm_100", "sm_120") == "sm_120"
    for capability, names in (
        ("8.7", ("sm_80", "sm_90")),
        ("8.9", ("sm_87",)),
        ("9.0", ("sm_87",)),
    ):
        with pytest.raises(NotAvailableError, match=f"the GPU here is sm_{capability[0]}"):
            on(capability, *names)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cuda_devices", lambda: ())
    with pytest.raises(NotAvailableError, match=r"for NVIDIA GPUs \(sm_87\).* finds none here"):
        cuda.architecture(("sm_87",))
