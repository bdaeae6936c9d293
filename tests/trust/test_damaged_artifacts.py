"""Artifacts that somebody damaged, in a bundle that is whole otherwise.

Where the hashes tell, no engine is asked. Where the attacker wrote fitting ones, the engine meets
the damage in a process of its own, and what became of it is an error here, told in one line.
"""

import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.backends import registry
from edgeinfer.cli.failures import describe
from edgeinfer.convert.pipeline.entry import export
from edgeinfer.errors import BundleError, CrashedError, EdgeInferError, RunError
from tests.fuzz import mutate
from tests.trust import marked

TARGETS = {
    "onnx": ("onnxruntime", "onnxruntime"),
    "openvino_ir": ("openvino", "openvino"),
    "tflite": ("android", "litert"),
    "mlprogram": ("ios", "coreml-reference"),
    "tvm": ("tvm-x86-64-v3", "tvm"),
}
"""By format: a target that has it, and the engine that opens it here."""

Damage = Callable[[bytes], bytes]


def _noise(raw: bytes) -> bytes:
    return raw[:16] + random.Random(0).randbytes(max(0, len(raw) - 16))


DAMAGE: dict[str, Damage] = {
    "empty": lambda raw: b"",
    "half": lambda raw: raw[: len(raw) // 2],
    "ones": lambda raw: b"\xff" * len(raw),
    "noise": _noise,
    "twice": lambda raw: raw + raw,
    **{f"mutated-{i}": lambda raw, i=i: mutate.in_bytes(raw, random.Random(i)) for i in range(12)},  # type: ignore[misc]
}
FEW = ("noise",)
FEEDS = {"image": np.ones((1, 3, 8, 8), np.float32)}


@pytest.fixture(scope="module", params=sorted(TARGETS))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one variant; its file is called after its format."""
    target, backend = TARGETS[request.param]
    if not (probe := registry.get(backend).probe()).devices:
        pytest.skip(str(probe.reason))
    place = tmp_path_factory.mktemp(request.param) / f"{request.param}.edge"
    return export(onnx.parser.parse_model(marked.GRAPH), place, targets=[target]).path


def _artifacts(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as opened:
        return [name for name in opened.namelist() if name.startswith("variants/")]


def _load(path: Path, backend: str) -> list[float]:
    options = {"measure": False, "isolate": True, "native": "allow", "load_timeout_s": 60.0}
    with edgeinfer.load(path, backend=backend, **options) as session:  # type: ignore[arg-type]
        return [float(v) for v in session.run(FEEDS)["scores"].ravel()]


@pytest.mark.sample(2)
def test_damage_that_the_hashes_tell_reaches_no_engine(bundle: Path, tmp_path: Path) -> None:
    _, backend = TARGETS[bundle.stem]
    for name in _artifacts(bundle):
        with zipfile.ZipFile(bundle) as opened:
            members = {n: opened.read(n) for n in opened.namelist()}
        # Of the same size, so that nothing else tells.
        members[name] = bytes(len(members[name]))
        path = tmp_path / "damaged.edge"
        path.write_bytes(mutate.zipped(members))
        with pytest.raises(BundleError, match=rf"{name} is altered"):
            _load(path, backend)


def _check(bundle: Path, path: Path, name: str, how: str) -> None:
    """The model runs, or is refused in one line; this process goes on."""
    _, backend = TARGETS[bundle.stem]

    def damage(members: dict[str, bytes]) -> None:
        members[name] = DAMAGE[how](members[name])

    path.write_bytes(mutate.refitted(bundle.read_bytes(), damage))
    try:
        _load(path, backend)
    except EdgeInferError as error:
        told, is_of_run = describe(error), isinstance(error, RunError | CrashedError)
    else:
        return
    # An engine that fails in a run says nothing of why; what it gives instead is the file's fault.
    assert told.code == (3 if is_of_run and told.kind != "MismatchError" else 1), f"{name}: {told}"
    assert "\n" not in told.message.strip(), f"{name}, {how}: {told}"
    assert len(told.message) < 2_000


@pytest.mark.sample(2)
@pytest.mark.parametrize("how", FEW)
def test_damage_with_fitting_hashes_is_an_error_of_one_line(
    bundle: Path, tmp_path: Path, how: str
) -> None:
    _check(bundle, tmp_path / "damaged.edge", _artifacts(bundle)[-1], how)
    assert _load(bundle, TARGETS[bundle.stem][1]) == [1.0, 1.0, 1.0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_damage_with_fitting_hashes(bundle: Path, tmp_path: Path) -> None:
    for how in DAMAGE:
        for name in _artifacts(bundle):
            _check(bundle, tmp_path / "damaged.edge", name, how)
