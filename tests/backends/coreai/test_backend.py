import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreai import backend as coreai
from edgeinfer.backends.coreai.backend import CoreAIBackend
from edgeinfer.backends.process.isolated import IsolatedBackend
from edgeinfer.backends.testing import Subject, conformance
from edgeinfer.backends.testing.subject import describe
from edgeinfer.convert.lower.coreai.target import CoreAITarget
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import (
    ClosedError,
    LoadError,
    NotAvailableError,
    RunError,
    UnsupportedError,
)
from edgeinfer.types import TensorSpec
from tests.convert.lower.coreai.run import floats, lower, needs_coreai

EMPTY = "the runtime ends the process on some empty tensors: open sizes start at 1"

KNOWN = {
    "check_numbers_of_empty_tensors": EMPTY,
    "check_one_thread_is_one": "the runtime picks its threads",
}


def make_artifact(model: bytes, folder: Path) -> Artifact:
    """Lower a model of the kit; what is refused is a file that cannot be loaded."""
    graph = ir.from_proto(onnx.load_from_string(model))
    try:
        made = CoreAITarget().lower(
            normalise(graph).model, profiles.load("macos27"), LowerOptions(), folder
        )
    except UnsupportedError:
        path = folder / "metadata.json"
        path.write_bytes(b"")
        return Artifact("aimodel", path, *describe(model))
    return Artifact("aimodel", made.files[0], *describe(model))


@needs_coreai
@conformance([Subject(CoreAIBackend(), make_artifact, KNOWN)])
def test_conformance(subject: Subject, check: Any, tmp_path: Path) -> None:
    check(subject, tmp_path)


TEXT = "g (float[n,3] x) => (float[n,3] y) {y = Add(x, x)}"
X, Y = TensorSpec("x", "float32", ("n", 3)), TensorSpec("y", "float32", ("n", 3))


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return Artifact("aimodel", lower(TEXT, tmp_path).files[0], (X,), (Y,))


@needs_coreai
def test_runs_at_any_size_and_gives_arrays_of_its_own(artifact: Artifact) -> None:
    ready = CoreAIBackend().load(artifact, LoadOptions())
    first = ready.run({"x": floats(2, 3)})["y"]
    second = ready.run({"x": floats(5, 3, seed=1)})["y"]
    np.testing.assert_array_equal(first, floats(2, 3) * 2)
    np.testing.assert_array_equal(second, floats(5, 3, seed=1) * 2)
    ready.close()
    ready.close()
    with pytest.raises(ClosedError):
        ready.run({"x": floats(2, 3)})


@needs_coreai
def test_describes_itself_when_nobody_does(artifact: Artifact) -> None:
    ready = CoreAIBackend().load(Artifact("aimodel", artifact.path, (), ()), LoadOptions())
    assert ready.inputs == (TensorSpec("x", "float32", (None, 3)),)
    assert ready.outputs == (TensorSpec("y", "float32", (None, 3)),)
    ready.close()


@needs_coreai
def test_views_are_read_as_they_are(artifact: Artifact) -> None:
    ready = CoreAIBackend().load(artifact, LoadOptions())
    x = floats(3, 4).T[1:]
    np.testing.assert_array_equal(ready.run({"x": x})["y"], x * 2)
    ready.close()


@needs_coreai
def test_threads_take_turns(artifact: Artifact) -> None:
    ready = CoreAIBackend().load(artifact, LoadOptions())
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = floats(4, 3, seed=seed)
        if not np.array_equal(ready.run({"x": x})["y"], x * 2):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ready.close()
    assert wrong == []


@needs_coreai
def test_bound_buffers(artifact: Artifact) -> None:
    ready = CoreAIBackend().load(artifact, LoadOptions())
    x, y = floats(2, 3), np.zeros((2, 3), np.float32)
    bound = ready.bind({"x": x}, {"y": y})
    bound()
    np.testing.assert_array_equal(y, x * 2)
    x[:] = 1
    bound()
    np.testing.assert_array_equal(y, np.full((2, 3), 2, np.float32))
    ready.close()


@needs_coreai
@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"x": floats(0, 3)}, "open sizes of a Core AI asset start at 1"),
        ({"x": floats(2, 4)}, "received shape"),
        ({"x": floats(2, 3).astype(np.float64)}, "expected float32"),
        ({"z": floats(2, 3)}, "expected inputs"),
    ],
)
def test_unfit_inputs_are_refused(artifact: Artifact, feeds: object, said: str) -> None:
    ready = CoreAIBackend().load(artifact, LoadOptions())
    with pytest.raises(RunError, match=said):
        ready.run(feeds)  # type: ignore[arg-type]
    ready.close()


@needs_coreai
def test_what_is_no_asset_is_refused(tmp_path: Path, artifact: Artifact) -> None:
    backend, options = CoreAIBackend(), LoadOptions()
    with pytest.raises(LoadError):
        backend.load(Artifact("aimodel", tmp_path / "none", (), ()), options)
    with pytest.raises(LoadError):
        backend.load(Artifact("onnx", artifact.path, (), ()), options)
    (artifact.path.parent / "main.mlirb").write_bytes(b"nothing")
    with pytest.raises(LoadError, match="is damaged"):
        backend.load(artifact, options)
    artifact.path.write_text("[", encoding="utf-8")
    with pytest.raises(LoadError, match="is not a Core AI asset"):
        backend.load(artifact, options)


@needs_coreai
def test_other_descriptions_devices_and_options_are_refused(artifact: Artifact) -> None:
    backend = CoreAIBackend()
    other = Artifact("aimodel", artifact.path, (TensorSpec("q", "float32", (3,)),), (Y,))
    with pytest.raises(LoadError, match="'q'"):
        backend.load(other, LoadOptions())
    with pytest.raises((NotAvailableError, LoadError)):
        backend.load(artifact, LoadOptions(device="gpu"))
    with pytest.raises(LoadError, match="has no options"):
        backend.load(artifact, LoadOptions(extra={"units": "all"}))


@needs_coreai
def test_runs_in_a_process_of_its_own(artifact: Artifact) -> None:
    ready = IsolatedBackend("coreai").load(artifact, LoadOptions())
    np.testing.assert_array_equal(ready.run({"x": floats(2, 3)})["y"], floats(2, 3) * 2)
    ready.close()


def test_the_probe_says_what_it_is_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'coreai'")

    monkeypatch.setattr(coreai, "import_coreai", absent)
    probe = CoreAIBackend().probe()
    assert probe.version is None
    assert "pip install 'edgeinfer[coreai]'" in str(probe.reason)
