"""Low-rank adapters on the tape: right numbers, and everybody's bits as alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.convert.llm.adapters import PARTS, Adapter, LowRank
from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.llm.source import expected, floats
from edgeinfer.errors import InputError
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.step import StepBatch
from edgeinfer.types import Array
from tests.backends.llm.small import CONFIG, batch, opened, stored, weights

KINDS = {"": "Q4_0", "attn_v": "Q5_0", "ffn_down": "Q4_1", "token_embd": "Q8_0"}
IDS = [int(i) for i in np.random.default_rng(1).integers(0, CONFIG.vocab, 48)]


def adapter(config: LlmConfig, rank: int, seed: int, parts: tuple[str, ...] = PARTS) -> Adapter:
    """A random adapter that changes products by about a half."""
    rng = np.random.default_rng(seed)
    shapes = {n: s for n, s in expected(config).items() if n.rpartition(".")[2] in parts}
    made = {}
    for name, (rows, columns) in shapes.items():
        low = rng.standard_normal((rank, columns)) / np.sqrt(columns)
        high = rng.standard_normal((rows, rank)) / np.sqrt(rank)
        low, high = (x.astype(np.float16).astype(np.float32) for x in (low, high))
        # As small as trained ones are at times: below float16's normal numbers.
        made[name] = LowRank(low, np.ldexp(high, -14), 2.0**14)
    return made


ADAPTERS = {
    "wide": adapter(CONFIG, 16, 1),
    "odd": adapter(CONFIG, 3, 2),
    "some": adapter(CONFIG, 8, 3, ("attn_q", "attn_v", "ffn_up")),
}


def merged(tensors: Mapping[str, StoredTensor], added: Adapter) -> dict[str, StoredTensor]:
    made = dict(tensors)
    for name, pair in added.items():
        made[name] = floats(made[name].float32() + pair.scale * pair.high @ pair.low)
    return made


def written(
    folder: Path, tensors: Mapping[str, StoredTensor], cache: Path, kind: str = "float16"
) -> Path:
    pytest.importorskip("tvm")
    from edgeinfer.convert.llm import variant
    from edgeinfer.convert.llm.reading import Reading
    from edgeinfer.convert.lower.tvm.machines import machine

    reading = Reading((1, 3), (2, 1), (256, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEINFER_CACHE", str(cache))
        how: Any = {"reading": reading, "caches": (kind,), "adapters": ADAPTERS}
        variant.write(CONFIG, tensors, machine("x86-64-v3"), folder, **how)
    return folder


@pytest.fixture(scope="module")
def adapted(folder: Path, kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small decoder with three adapters."""
    return written(tmp_path_factory.mktemp("adapted"), stored(CONFIG, KINDS), kernels)


def given(made: StepBatch, *which: int) -> StepBatch:
    """A batch whose sequences have adapters, by the rows of the table."""
    return replace(made, adapter=np.array(which, np.int32)[made.owner])


def alone(folder: Path, which: int, threads: int = 1) -> Array:
    executor, table = opened(folder, CONFIG, threads=threads)
    logits: Array = executor.step(given(batch(table, [(0, IDS, 0, len(IDS))]), which)).copy()
    executor.close()
    return logits


@pytest.mark.parametrize(("which", "name"), list(enumerate(ADAPTERS)))
def test_logits_are_near_those_of_merged_weights(adapted: Path, which: int, name: str) -> None:
    tensors = stored(CONFIG, KINDS)
    right = Oracle(CONFIG, merged(tensors, ADAPTERS[name])).logits([np.array(IDS)])[0]
    without = Oracle(CONFIG, tensors).logits([np.array(IDS)])[0]
    assert np.linalg.norm(right - without) > 0.3 * np.linalg.norm(right)
    found = alone(adapted, which)
    # As without an adapter, see ``test_executor``.
    assert np.linalg.norm(found - right) / np.linalg.norm(right) < 0.05
    assert (found.argmax(-1) == right.argmax(-1)).mean() > 0.85


@pytest.mark.slow
def test_beside_weights_of_float32_nothing_is_rounded(kernels: Path, tmp_path: Path) -> None:
    tensors = weights(CONFIG)
    exact = written(tmp_path, tensors, kernels, "float32")
    for which, added in enumerate(ADAPTERS.values()):
        right = Oracle(CONFIG, merged(tensors, added)).logits([np.array(IDS)])[0]
        error = np.linalg.norm(alone(exact, which) - right) / np.linalg.norm(right)
        assert error < 1e-5


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_are_those_of_a_sequence_alone(folder: Path, adapted: Path, threads: int) -> None:
    """Several adapters and none in one batch, cut at random; threads change nothing."""
    whole = {which: alone(adapted, which) for which in (-1, 0, 1, 2)}
    plain, table = opened(folder, CONFIG)
    assert np.array_equal(plain.step(batch(table, [(0, IDS, 0, len(IDS))])), whole[-1])
    plain.close()
    rng = np.random.default_rng(7)
    for _ in range(6):
        executor, table = opened(adapted, CONFIG, threads=threads)
        which = [int(a) for a in rng.integers(-1, 3, 8)]
        done = dict.fromkeys(range(int(rng.integers(1, 8))), 0)
        while done:
            parts = []
            for sequence in [s for s in done if rng.random() < 0.6]:
                count = min(int(rng.integers(1, 9)), len(IDS) - done[sequence])
                start = done[sequence]
                parts.append((sequence, IDS[start : start + count], start, count))
            if not parts:
                continue
            logits = executor.step(given(batch(table, parts), *which))
            at = 0
            for sequence, ids, start, count in parts:
                right = whole[which[sequence]][start : start + count]
                assert np.array_equal(logits[at : at + count], right)
                at += len(ids)
                done[sequence] += count
                if done[sequence] == len(IDS):
                    del done[sequence]
        executor.close()


def test_an_adapter_that_is_not_there_is_refused(folder: Path, adapted: Path) -> None:
    for place, count in ((folder, 0), (adapted, 3)):
        executor, table = opened(place, CONFIG)
        assert len(executor.adapters) == count
        made = batch(table, [(0, IDS[:4], 0, 1)])
        with pytest.raises(InputError, match=f"this model has {count}"):
            executor.step(given(made, count))
        with pytest.raises(InputError, match="2 adapters for 4 tokens"):
            executor.step(replace(made, adapter=np.array([-1, -1], np.int32)))
        executor.close()


def changed(folder: Path, made: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """Files of a variant, of which one says something else."""
    shutil.copytree(folder, made)
    place = made / name
    place.write_text(json.dumps(change(json.loads(place.read_text()))))
    return made


def test_fingerprints_tell_models_apart(folder: Path, adapted: Path, tmp_path: Path) -> None:
    """Also those that differ in their description alone: ropes, or an adapter's factor."""

    def turned(config: Any) -> Any:
        config["ropes"][0]["frequencies"][1] *= 0.5
        return config

    def louder(tape: Any) -> Any:
        next(iter(tape["adapters"][0]["matrices"].values()))["scale"] *= 2
        return tape

    places = [
        *(folder, adapted),
        changed(folder, tmp_path / "turned", "llm.json", turned),
        changed(adapted, tmp_path / "louder", "tape.json", louder),
    ]
    room = ExecutorSizes(pages=8)
    found = []
    for place, contents in ((places[0], ""), *((p, "") for p in places), (folder, "others")):
        executor = open_executor(place, room, contents)
        found.append(executor.fingerprint)
        executor.close()
    assert found[0] == found[1]
    assert len(set(found)) == len(found) - 1
