"""Several bundles as functions of one package."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
from edgeinfer.backends.process import isolation
from edgeinfer.convert import join as join_module
from edgeinfer.convert.join import join
from edgeinfer.convert.pipeline import worker
from edgeinfer.errors import CrashedError, LoadError, UsageError, VerifyError

WEIGHTS = np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype(np.float32)
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[N,64] x, float[N,64] state) => (float[N,64] y, float[N,64] next)
{ a = MatMul(x, w) next = Add(a, state) y = Relu(next) }"""


def model(weights: Any = WEIGHTS) -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return made


def bundle(folder: Path, name: str, rows: int, **more: Any) -> Path:
    asked: dict[str, Any] = {"deployment": "iOS18", "targets": ["ios"], **more}
    shapes = {"x": (rows, 64), "state": (rows, 64)}
    made = edgeinfer.export(
        *(asked.pop("model", None) or model(), folder / f"{name}.edge"),
        input_shapes=shapes,
        **asked,
    )
    return made.path


@pytest.mark.parametrize("precision", ["fp32", "weight_only_wp6_afp16"])
def test_functions_share_their_weights_and_keep_their_own_names(
    precision: str, tmp_path: Path
) -> None:
    asked = {"precision": precision, "states": {"state": "next"}}
    parts = {
        "prefill": bundle(tmp_path, "prefill", 5, **asked),
        "decode": bundle(tmp_path, "decode", 1, **asked),
    }
    made = join(parts, tmp_path / "both.mlpackage")
    assert [f.name for f in made.functions] == ["prefill", "decode"]
    assert all(f.vectors and f.metrics.max_rel < 0.2 for f in made.functions)
    blobs = [p.stat().st_size for p in made.path.rglob("weight.bin")]
    alone = WEIGHTS.nbytes if precision == "fp32" else WEIGHTS.size * 6 / 8 + 128
    assert [alone <= n < alone + 4096 for n in blobs] == [True]
    x = np.random.default_rng(1).normal(0, 1, (1, 64)).astype(np.float32)
    manifest = made.path / "Manifest.json"
    opened = {}
    for name, rows in {"": 5, "prefill": 5, "decode": 1}.items():
        options = LoadOptions(extra={"function": name} if name else {})
        run = CoreMLReferenceBackend().load(Artifact("mlprogram", manifest, (), ()), options)
        assert [s.name for s in run.inputs] == ["x"]
        opened[name] = run.run({"x": np.repeat(x, rows, axis=0)})["y"]
    np.testing.assert_array_equal(opened["prefill"], opened[""])
    np.testing.assert_allclose(opened["prefill"][:1], opened["decode"], rtol=1e-5, atol=1e-6)


def test_same_bundles_give_same_bytes(tmp_path: Path) -> None:
    parts = {"a": bundle(tmp_path, "a", 2), "b": bundle(tmp_path, "b", 3)}
    made = [join(parts, tmp_path / f"{i}.mlpackage").path for i in range(2)]
    files = [[p.read_bytes() for p in sorted(m.rglob("*")) if p.is_file()] for m in made]
    assert files[0] == files[1]


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    new, old = bundle(tmp_path, "new", 2), bundle(tmp_path, "old", 2, deployment="iOS17")
    other = bundle(tmp_path, "cpu", 2, targets=["onnxruntime"], deployment="")
    place = tmp_path / "both.mlpackage"
    for parts, fault in (
        ({"a": new}, "two functions"),
        ({"a": new, "b": old}, "--deployment iOS18"),
        ({"a": new, "b": other}, "no Core ML package"),
        ({"a": new, "b-1": new}, "no name of a function"),
    ):
        with pytest.raises(UsageError, match=fault):
            join(parts, place)
    with pytest.raises(UsageError, match=r"ends with \.mlpackage"):
        join({"a": new, "b": new}, tmp_path / "both")
    assert not place.exists()
    join({"a": new, "b": new}, place)
    with pytest.raises(UsageError, match="add --overwrite"):
        join({"a": new, "b": new}, place)
    join({"a": new, "b": new}, place, overwrite=True)
    with pytest.raises(LoadError, match="no function 'c', only a, b"):
        CoreMLReferenceBackend().load(
            Artifact("mlprogram", place / "Manifest.json", (), ()),
            LoadOptions(extra={"function": "c"}),
        )


def test_wrong_numbers_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgeinfer.convert.lower.coreml import functions as module

    parts = {"a": bundle(tmp_path, "a", 2), "b": bundle(tmp_path, "b", 2, model=model(2 * WEIGHTS))}

    def mixed_up(packages: dict[str, Path], output: Path) -> Any:
        return module_join({"a": packages["b"], "b": packages["a"]}, output)

    module_join = module.join_packages
    monkeypatch.setattr(module, "join_packages", mixed_up)
    with pytest.raises(VerifyError, match="function 'a': output"):
        join(parts, tmp_path / "both.mlpackage")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.edge", "b.edge"]


def test_what_coremltools_cannot_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = pytest.importorskip("coremltools")

    def fails(*args: object) -> None:
        raise KeyError("main")

    parts = {name: bundle(tmp_path, name, 1) for name in ("a", "b")}
    monkeypatch.setattr(tools.utils, "save_multifunction", fails)
    with pytest.raises(LoadError, match="coremltools cannot join these packages: 'main'"):
        join(parts, tmp_path / "both.mlpackage")
    assert not (tmp_path / "both.mlpackage").exists()


def test_a_package_is_evaluated_where_it_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop without an end in a stranger's package kept ``join`` for good."""
    parts = {name: bundle(tmp_path, name, 1) for name in ("a", "b")}
    monkeypatch.delenv(isolation.IN_PROCESS, raising=False)
    monkeypatch.setattr(join_module, "_LONGEST_S", 1e-3)
    with pytest.raises(CrashedError):
        join(parts, tmp_path / "both.mlpackage")
    assert not (tmp_path / "both.mlpackage").exists()


def test_a_package_that_takes_all_memory_is_read_where_it_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """coremltools works out what constants give: 4 KB of a stranger's package took 6 GB of ours."""
    parts = {name: bundle(tmp_path, name, 1) for name in ("a", "b")}
    asked = []

    def reads(task: str, *given: object, files: list[Path], writable: list[Path]) -> None:
        asked.append((task, len(files)))
        raise CrashedError("converter", "join packages", "it was ended")

    monkeypatch.setattr(worker, "read_apart", reads)
    with pytest.raises(CrashedError):
        join(parts, tmp_path / "both.mlpackage")
    assert asked == [("join packages", 2)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.edge", "b.edge"]
    monkeypatch.undo()
    monkeypatch.delenv(isolation.IN_PROCESS, raising=False)
    made = join(parts, tmp_path / "both.mlpackage")
    assert [f.name for f in made.functions] == ["a", "b"]
