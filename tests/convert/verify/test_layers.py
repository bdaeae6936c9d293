"""Each layer's error is that of the artifact's own arithmetic, and its time stands next to it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.backends.operators import Operator, OperatorProfile
from edgeinfer.convert.verify.layer_table import EQUAL, NodeError, NodeErrors, table
from edgeinfer.convert.verify.layers import errors
from edgeinfer.errors import UnsupportedError
from edgeinfer.types import Array, Feeds
from tests.convert.verify.test_bisect import run

NET = """<ir_version: 10, opset_import: ["": 20]> g
    (float[1,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[1,4] y) {
    [conv] c = Conv<pads=[1,1,1,1]>(x, w, b)
    [relu] r = Relu(c)
    [size] s = Shape(r)
    [pool] p = GlobalAveragePool(r)
    [flat] y = Flatten(p) }"""


def network() -> ir.Model:
    model = ir.from_onnx_text(NET)
    rng = np.random.default_rng(0)
    for value, shape in zip(list(model.graph.inputs[1:]), ((4, 3, 3, 3), (4,)), strict=True):
        value.const_value = ir.tensor(rng.standard_normal(shape).astype(np.float32))
        model.graph.initializers[str(value.name)] = value
        model.graph.inputs.remove(value)
    return model


X = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_a_layer_that_is_wrong_is_where_the_ratio_falls() -> None:
    def wrong(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
        made = run(model, feeds)
        for name in ("p", "y"):
            made[name] = made[name] * 1.1
        return made

    model = network()
    found, note = errors(model, model, {"x": X}, wrong)
    by_name = {e.node: e for e in found}
    assert note == ""
    assert [e.node for e in found] == ["conv", "relu", "size", "pool", "flat"]
    good, bad = by_name["relu"], by_name["pool"]
    assert good.sqnr_db is not None
    assert good.sqnr_db > 100
    assert bad.sqnr_db == pytest.approx(20.0, abs=0.1)
    assert bad.max_rel == pytest.approx(0.1, rel=1e-3)
    assert by_name["size"].sqnr_db is None, "integers are no floats"


def test_a_graph_that_cannot_give_all_its_values_says_so() -> None:
    def refuse(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
        raise UnsupportedError("some target", [])

    model = network()
    found, note = errors(model, model, {"x": X}, refuse)
    assert "does not run with all values as outputs: " in note
    assert {e.sqnr_db for e in found} == {None}


def layer(node: str, *outputs: str, db: float = 100.0) -> NodeError:
    return NodeError(node, "Op", outputs, db, 1e-3)


def profile(*operators: Operator) -> OperatorProfile:
    return OperatorProfile("a clock", operators, 20, 100.0, 90.0)


def test_a_step_of_several_nodes_has_its_time_once() -> None:
    nodes = (layer("conv", "c"), layer("relu", "r"), layer("flat", "y", db=float("inf")))
    steps = profile(
        Operator("conv+relu", "Conv", "CPU", 30.0, nodes=("conv", "r")),
        Operator("reorder 1", "Reorder", "CPU", 6.0, role="reorder"),
        Operator("reorder 2", "Reorder", "CPU", 4.0, role="reorder"),
    )
    found = table(NodeErrors("engine", 0, nodes), steps, "")
    rows = [(r["node"], r["us"], r["share"], r["step"]) for r in found["rows"]]
    assert rows == [
        ("conv", 30.0, 0.75, ""),
        ("relu", None, None, "conv"),
        ("flat", None, None, ""),
    ]
    assert found["own"] == {"reorder": {"count": 2, "us": 10.0}}
    assert found["rows"][2]["sqnr_db"] == EQUAL


def test_an_engine_without_a_clock_says_so() -> None:
    found = table(NodeErrors("litert", 0, (layer("a", "x"),)), None, "it has no profiler")
    assert (found["clock"], found["notes"], found["own"]) == ("", ["it has no profiler"], {})
    assert found["rows"][0]["us"] is None


@pytest.fixture(scope="module")
def samples() -> Array:
    """Pictures with a gradient: noise is no data to calibrate with."""
    rng = np.random.default_rng(2)
    steps = np.linspace(0, 1, 8, dtype=np.float32)
    base = rng.uniform(0.2, 1, (64, 3, 1, 1)).astype(np.float32)
    return base * (steps[:, None] + steps[None, :])[None, None]


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", ["fp32", "static_wi8_ai8"])
@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "rpi5"])
def test_the_last_layer_has_the_error_that_the_gate_measured(
    tmp_path: Path, samples: Array, precision: str, target: str
) -> None:
    """Layers of integers are judged in integers: a float layer would hide what is lost."""
    ir.save(network(), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=samples)
    more: dict[str, Any] = {}
    if precision != "fp32":
        more = {"calibration": tmp_path / "samples.npz", "force": True}
    made = edgeinfer.export(
        *(tmp_path / "net.onnx", tmp_path / "net.edge"),
        targets=[target],
        precision=precision,
        layers=True,
        **more,
    )
    for variant in made.report.variants:
        found = made.report.to_json()["layers"][variant.id]
        artifact = next(v for v in made.manifest.variants if v.id == variant.id)
        assert found["engine"] == artifact.engines[0].backend
        rows = {row["node"]: row for row in found["rows"]}
        with edgeinfer.load(made.path, backend=found["engine"]) as session:
            vector = made.report.vectors[found["vector"]]
            assert made.report.expected is not None
            right = made.report.expected.answers[found["vector"]].outputs["y"]
            own = session.run(vector.feeds)["y"]
        off = float(np.abs(own - right).max() / np.abs(right).max())
        if precision == "fp32":
            assert rows["flat"]["max_rel"] < 1e-5
        else:
            assert rows["flat"]["max_rel"] == pytest.approx(off, rel=0.05)
            assert off > 1e-4
            assert rows["conv"]["max_rel"] is None, "it is only computed within a layer of integers"
        has_clock = found["engine"] != "litert" and target != "rpi5"
        assert (found["clock"] != "") is has_clock
        assert any(row["us"] for row in rows.values()) is has_clock
        assert bool(found["notes"]) is not has_clock


def test_errors_of_another_unit_say_so(tmp_path: Path) -> None:
    ir.save(network(), tmp_path / "net.onnx")
    made = edgeinfer.export(
        *(tmp_path / "net.onnx", tmp_path / "net.edge"), targets=["cuda"], layers=True
    )
    (found,) = made.report.to_json()["layers"].values()
    assert found["device"] == "cpu"
    assert "errors are of the cpu: none of a gpu, which it is for" in found["notes"]


def test_without_being_asked_nothing_is_told(tmp_path: Path) -> None:
    ir.save(network(), tmp_path / "net.onnx")
    made = edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=["onnxruntime"])
    assert "layers" not in made.report.to_json()


@pytest.mark.parametrize("name", ["conv_nchwc", "conv_token_12", "conv"])
def test_what_onnx_runtime_adds_to_a_name_is_not_the_nodes(name: str) -> None:
    from edgeinfer.backends.onnxruntime.operators import _operator

    assert _operator(name, {"op_name": "Conv", "provider": "CPUExecutionProvider"}, 1.0).nodes == (
        "conv",
    )
