import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.convert.lower.coreml import ops as _families  # noqa: F401  (fills the registry)
from edgeinfer.convert.lower.coreml import package
from edgeinfer.convert.lower.coreml.deployment import deployment
from edgeinfer.convert.lower.coreml.options import CoreMLOptions
from edgeinfer.convert.lower.coreml.package import CHECKED, NAMES
from edgeinfer.convert.lower.coreml.quirks import FAULTS
from edgeinfer.convert.lower.coreml.ranks import merge_axes, merge_perm, steps_of
from edgeinfer.convert.lower.registry import Refusal
from tests.convert.lower.coreml.run import check, evaluate, floats, lower, refusal

WEIGHTS = ",".join(f"{v:.5f}" for v in floats(108).ravel())
NET = (
    f"g (float[1,3,8,8] x) => (float[1,4] y) <float[4,3,3,3] w = {{{WEIGHTS}}}, "
    "float[4] b = {1.0,2.0,3.0,4.0}> "
    "{c = Conv(x, w, b) r = Relu(c) p = GlobalAveragePool(r) y = Flatten(p)}"
)


def test_same_model_gives_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    contents = []
    for index, folder in enumerate(folders):
        folder.mkdir()
        if index:
            check("g (float[3] x) => (float[3] y) {y = Sigmoid(x)}", {"x": floats(3)})
        made = lower(NET, folder)
        contents.append([(f.relative_to(folder), f.read_bytes()) for f in made.files])
    assert contents[0] == contents[1]
    assert [str(p) for p, _ in contents[0]] == [
        "model.mlpackage/Manifest.json",
        "model.mlpackage/Data/com.apple.CoreML/model.mlmodel",
        "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin",
    ]


def test_metadata_says_who_checked_and_what_names_stand_for(tmp_path: Path) -> None:
    package = open_package(lower(NET, tmp_path).files[0])
    assert package.metadata[CHECKED] == "by the reference evaluator, not by Core ML"
    assert json.loads(package.metadata[NAMES]) == {"inputs": {"x": "x"}, "outputs": {"y": "y"}}


def test_coremltools_loads_what_was_written(tmp_path: Path) -> None:
    from edgeinfer.backends.engines import import_coremltools

    ct = import_coremltools()
    made = lower(NET, tmp_path)
    model = ct.models.MLModel(str(made.files[0].parent), skip_model_load=True)
    spec = model.get_spec()
    from coremltools.converters.mil.frontend.milproto.load import load

    program = load(
        spec,
        specification_version=spec.specificationVersion,
        file_weights_dir=model.weights_dir,
    )
    kinds = [op.op_type for op in program.functions["main"].operations if op.op_type != "const"]
    assert kinds == ["conv", "relu", "reduce_mean", "reshape"]


def test_half_precision_and_its_islands(tmp_path: Path) -> None:
    x = floats(1, 3, 8, 8)
    made = lower(NET, tmp_path, precision="fp16")
    assert made.precision == "fp16"
    want = evaluate(NET, made, {"x": x})["y"]
    (tmp_path / "b").mkdir()
    single = lower(NET, tmp_path / "b")
    assert single.precision == "fp32"
    got = evaluate(NET, single, {"x": x})["y"]
    assert 0 < np.abs(got - want).max() < 5e-3


def test_named_nodes_stay_single(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) {[keep] a = Sigmoid(x) [go] b = Tanh(a) y = Sigmoid(b)}"
    made = lower(text, tmp_path, precision="fp16", fp32_nodes=frozenset({"keep"}))
    assert made.precision == "fp16+fp32"


@pytest.mark.parametrize("call", ["Softplus(a)", "Mish(a)", "ReduceLogSumExp(a)", "LogSoftmax(a)"])
def test_what_the_neural_engine_gets_wrong_stays_single(call: str, tmp_path: Path) -> None:
    text = f"g (float[2,3] x) => (y) {{a = Tanh(x) y = {call}}}"
    made = lower(text, tmp_path, precision="fp16")
    assert "fp32" in made.precision
    assert any("stay fp32" in n for n in made.notes)


def test_faults_have_sources_and_known_remedies() -> None:
    assert len({f.id for f in FAULTS}) == len(FAULTS)
    assert all(f.source and f.what for f in FAULTS)


def test_a_fault_that_is_fixed_is_left_out() -> None:
    fault = FAULTS[0]
    later = type(fault)(fault.id, fault.ops, fault.what, fault.source, "fp32", fixed="iOS18")
    assert later.is_in(deployment("iOS17"))
    assert not later.is_in(deployment("iOS18"))


@pytest.mark.parametrize(
    ("text", "guards"),
    [
        ("g (float[4,3] x, int64[2] i) => (y) {y = Gather(x, i)}", 1),
        ("g (float[4,3] x, int64[2,2] i) => (y) {y = GatherND(x, i)}", 1),
        ("g (float[4,3] x) => (y) <int64[2] i = {-1, 2}> {y = Gather(x, i)}", 0),
        ("g (float[4,3] x) => (y) {a = ArgMax<axis=0, keepdims=0>(x) y = Gather(x, a)}", 0),
    ],
)
def test_positions_are_brought_above_zero_once(text: str, guards: int, tmp_path: Path) -> None:
    block = open_package(lower(text, tmp_path).files[0].parent).function().block
    assert sum(o.type == "select" for o in block.operations) == guards


def test_every_refused_node_is_listed() -> None:
    text = (
        "g (float[2,2] x) => (a, b) {a = RandomNormalLike(x) c = Relu(x) b = RandomUniformLike(c)}"
    )
    assert [p.op for p in refusal(text)] == ["RandomNormalLike", "RandomUniformLike"]


def test_axes_that_go_together_are_one() -> None:
    assert merge_axes([(2, 3, 1, 4, 5, 6), (1, 1, 1, 4, 5, 6)]) == [[0, 1], [3, 4, 5]]
    with pytest.raises(Refusal):
        merge_axes([(2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2)])


def test_any_permutation_is_a_row_of_exchanges() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        shape = tuple(int(s) for s in rng.integers(1, 4, 7))
        perm = [int(p) for p in rng.permutation(7)]
        x = rng.standard_normal(shape)
        flat = x.reshape(-1)
        for view, step in steps_of(*merge_perm(shape, perm), 5):
            assert len(view) <= 5
            sizes = [math.prod(shape[a] for a in axes) for axes in view]
            flat = flat.reshape(sizes).transpose(step).reshape(-1)
        np.testing.assert_array_equal(flat, x.transpose(perm).reshape(-1))


def test_packed_weights_by_deployment_target() -> None:
    values = ",".join(str(v) for v in np.arange(-64, 64))
    text = (
        f"g (float[2,16] x) => (float[2,8] y) <int8[16,8] q = {{{values}}}, "
        "float[8] s = {0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8}> "
        "{w = DequantizeLinear<axis=1>(q, s) y = MatMul(x, w)}"
    )
    feeds = {"x": floats(2, 16)}
    old = check(text, feeds, options=CoreMLOptions(deployment("iOS16")), rtol=5e-6)
    assert old["constexpr_affine_dequantize"] == 1
    new = check(text, feeds, options=CoreMLOptions(deployment("iOS18")), rtol=5e-6)
    assert new["constexpr_blockwise_shift_scale"] == 1


def test_a_package_without_weights_names_no_folder_for_them(tmp_path: Path) -> None:
    from edgeinfer.backends.engines import import_coremltools

    made = lower("g (float[3] x) => (float[3] y) {y = Sigmoid(x)}", tmp_path)
    folder = made.files[0].parent
    assert [p.name for p in made.files] == ["Manifest.json", "model.mlmodel"]
    assert [p for p in folder.rglob("*") if p.is_dir() and not any(p.iterdir())] == []
    entries = json.loads(made.files[0].read_text())["itemInfoEntries"].values()
    assert all((folder / "Data" / entry["path"]).exists() for entry in entries)
    model = import_coremltools().models.MLModel(str(folder), skip_model_load=True)
    assert [i.name for i in model.get_spec().description.input] == ["x"]


def test_integers_meet_half_precision_without_casts(tmp_path: Path) -> None:
    weights = ",".join(str(v) for v in np.arange(-64, 64))
    text = (
        f"g (float[1,16] x) => (float[1,8] y) <int8[16,8] w = {{{weights}}}, float s = {{0.03}}, "
        "float sw = {0.01}, float sy = {0.1}, int8 z = {0}> "
        "{q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, sw, z) "
        "m = MatMul(d, v) r = Relu(m) p = QuantizeLinear(r, sy, z) y = DequantizeLinear(p, sy, z)}"
    )
    x = floats(1, 16)
    made = lower(text, tmp_path, precision="fp16")
    ops = open_package(made.files[0]).function().block.operations
    kinds = [op.type for op in ops if op.type != "const"]
    assert kinds.count("cast") <= 1
    made_by = [o.type for op in ops for o in op.outputs if op.type in ("matmul", "relu")]
    assert {getattr(kind, "dtype", "") for kind in made_by} == {"float16"}
    steps = np.clip(np.rint(x / np.float32(0.03)), -128, 127) * 0.03
    w = np.arange(-64, 64).reshape(16, 8) * 0.01
    want = np.clip(np.rint(np.maximum(steps @ w, 0) / 0.1), -128, 127) * 0.1
    got = evaluate(text, made, {"x": x})["y"]
    assert np.abs(got - want).max() <= 0.1001
    assert np.mean(np.abs(got - want) < 0.001) > 0.7


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        (NET, False),
        (
            f"g (float[1,16] x) => (y) <int8[16,8] w = {{{','.join(map(str, range(128)))}}}, "
            "float s = {0.01}> {v = DequantizeLinear(w, s) y = MatMul(x, v)}",
            True,
        ),
    ],
    ids=["floats", "packed"],
)
def test_packed_weights_are_followed_where_there_are_any(
    text: str, follows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, found, written = package._is_packed, [], []

    for always in (False, True):

        def is_packed(*asked: Any, always: bool = always) -> bool:
            found.append(ask(*asked))
            return always or found[-1]

        monkeypatch.setattr(package, "_is_packed", is_packed)
        folder = tmp_path / str(always)
        folder.mkdir()
        written.append([f.read_bytes() for f in lower(text, folder).files])
    assert found == [follows, follows]
    assert written[0] == written[1]
