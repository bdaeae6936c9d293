"""The first diverging node is named, and the saved sub-model is small and still fails."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.verify import Finding
from edgeinfer.convert.verify.bisect import explain
from edgeinfer.errors import RunError, UnsupportedError
from edgeinfer.metrics import BUDGETS, Budget, check, compare
from edgeinfer.types import Array, Feeds

Edit = Callable[[ir.Model], None]
BLOCKS = 12
FP32 = BUDGETS["fp32"]
TIGHT = replace(FP32, sqnr_db=90.0)


def network() -> ir.Model:
    """Sixty nodes: residual blocks of Conv, Relu, Conv, Add and Gelu; numbers stay near one."""
    rng = np.random.default_rng(0)
    lines, weights, x = [], {}, "x"
    for i in range(BLOCKS):
        lines += [
            f"[conv{i}a] a{i} = Conv<pads=[1, 1, 1, 1]>({x}, wa{i})",
            f"[relu{i}] r{i} = Relu(a{i})",
            f"[conv{i}b] b{i} = Conv<pads=[1, 1, 1, 1]>(r{i}, wb{i})",
            f"[add{i}] s{i} = Add({x}, b{i})",
            f"[gelu{i}] g{i} = Gelu(s{i})",
        ]
        for side in "ab":
            weights[f"w{side}{i}"] = rng.standard_normal((8, 8, 3, 3)).astype(np.float32) * 0.15
        x = f"g{i}"
    lines.append(f"[head] y = Identity({x})")
    declared = ", ".join(f"float[8, 8, 3, 3] {name}" for name in weights)
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 20]> '
        f"g (float[1, 8, 16, 16] x, {declared}) => (float[1, 8, 16, 16] y) {{ {' '.join(lines)} }}"
    )
    for value in list(model.graph.inputs[1:]):
        value.const_value = ir.tensor(weights[str(value.name)])
        model.graph.initializers[str(value.name)] = value
        model.graph.inputs.remove(value)
    return model


FEEDS = {"x": np.random.default_rng(1).standard_normal((1, 8, 16, 16)).astype(np.float32)}


def run(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
    proto = ir.to_proto(ir.external_data.load_to_model(model.clone()))
    onnx.checker.check_model(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


class Broken:
    """Lowers like ONNX Runtime, but for one fault; counts how often it is asked."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self.asked = 0

    def __call__(self, model: ir.Model, feeds: Feeds) -> dict[str, Array]:
        self.asked += 1
        model = model.clone()
        self._edit(model)
        return run(model, feeds)


def found(edit: Edit, model: ir.Model | None = None, budget: Budget = FP32) -> Finding:
    finding = explain(model or network(), FEEDS, Broken(edit), budget)
    assert finding.model is not None
    results = Broken(edit)(finding.model, finding.inputs)
    pairs = [(e, results[n]) for n, e in finding.expected.items()]
    breaches = [b for e, r in pairs for b in check(compare(e, r), budget)]
    assert breaches, "the sub-model that is saved must still fail"
    honest = run(finding.model, finding.inputs)
    for name, value in finding.expected.items():
        assert check(compare(value, honest[name]), budget) == []
    return finding


def drop_pad(name: str) -> Edit:
    def edit(model: ir.Model) -> None:
        for node in model.graph:
            if node.name == name:
                node.attributes["pads"] = ir.AttrInt64s("pads", [2, 2, 0, 0])

    return edit


def tanh_gelu(model: ir.Model) -> None:
    for node in model.graph:
        if node.op_type == "Gelu":
            node.attributes["approximate"] = ir.AttrString("approximate", "tanh")


@pytest.mark.parametrize("name", ["conv0a", "conv5b", "conv11b"])
def test_a_dropped_pad_is_one_node(name: str) -> None:
    finding = found(drop_pad(name))
    assert (finding.node, finding.op, finding.cause) == (name, "Conv", name)
    assert finding.nodes == (name,)


def test_a_fault_in_every_gelu_is_found_at_the_first() -> None:
    finding = found(tanh_gelu, budget=TIGHT)
    assert finding.nodes == ("gelu0",)
    assert finding.op == "Gelu"


def test_few_questions_are_asked() -> None:
    broken = Broken(drop_pad("conv5b"))
    explain(network(), FEEDS, broken, FP32)
    assert broken.asked < 40


def test_a_fault_of_two_nodes_together() -> None:
    def edit(model: ir.Model) -> None:
        for node in model.graph:
            after = [u.node.name for u in node.outputs[0].uses()]
            if node.name == "conv6a" and "relu6" in after:
                weight = node.inputs[1]
                if weight is not None and weight.const_value is not None:
                    weight.const_value = ir.tensor(weight.const_value.numpy() * 1.05)

    finding = found(edit)
    assert finding.nodes == ("conv6a", "relu6")
    assert (finding.node, finding.cause) == ("relu6", "conv6a")


def test_an_error_that_starts_small_and_grows() -> None:
    """A last-digit error is within budget where it is made, and is all that a difference leaves."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 20]>
        g (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) {
            [k] k = Constant<value = float {1000.0}>()
            [pre] p = Tanh(x) [lift] l = Add(p, k) [drop] d = Sub(l, k) [post] y = Exp(d) }""")

    def edit(m: ir.Model) -> None:
        for node in m.graph:
            if node.name == "k":
                node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.float32(1000.05)))
            if node.name == "drop":
                k = ir.node("Constant", [], {"value": ir.tensor(np.float32(1000.0))})
                m.graph.insert_before(node, k)
                node.replace_input_with(1, k.outputs[0])

    finding = found(edit, model)
    assert (finding.node, finding.cause) == ("drop", "k")
    assert set(finding.nodes) == {"k", "lift", "drop"}


def test_divergence_that_hides_and_comes_back() -> None:
    """A clip hides the fault on the way; another path carries it to the output."""
    middle = " ".join(f"[hide{i}] h{i} = Clip(h{i - 1}, zero, zero)" for i in range(1, 30))
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 20]>
        g (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) {{
            [zero] zero = Constant<value = float {{0.0}}>()
            [fault] f = Exp(x) [hide0] h0 = Clip(f, zero, zero) {middle}
            [end] y = Add(h29, f) }}""")

    def edit(m: ir.Model) -> None:
        for node in m.graph:
            if node.op_type == "Exp":
                node.op_type = "Neg"

    assert found(edit, model).nodes == ("fault",)


def test_overflow_of_half_precision() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 20]>
        g (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) {
            [big] k = Constant<value = float {300.0}>()
            [up] u = Mul(x, k) [square] s = Mul(u, u) [down] d = Sqrt(s) [back] y = Div(d, k) }""")

    def half(m: ir.Model) -> None:
        for node in list(m.graph):
            value = node.outputs[0]
            narrow = ir.node("Cast", [value], {"to": ir.DataType.FLOAT16})
            wide = ir.node("Cast", [narrow.outputs[0]], {"to": ir.DataType.FLOAT})
            ir.convenience.replace_all_uses_with(value, wide.outputs[0], replace_graph_outputs=True)
            narrow.replace_input_with(0, value)
            m.graph.insert_after(node, [narrow, wide])
            if wide.outputs[0].is_graph_output():
                wide.outputs[0].name, value.name = value.name, f"{value.name}_before"
            wide.outputs[0].type, wide.outputs[0].shape = value.type, value.shape

    finding = explain(model, FEEDS, Broken(half), BUDGETS["fp16"])
    assert finding.node == "square"
    assert "NaN or infinity" in finding.breaches[0]


def test_subgraphs_are_one_node_and_keep_what_they_capture() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 20]>
        g (float[1, 8, 16, 16] x, bool c) => (float[1, 8, 16, 16] y) {
            [pre] p = Tanh(x)
            [branch] b = If(c) <
                then_branch = t () => (float[1, 8, 16, 16] o) { o = Exp(p) },
                else_branch = e () => (float[1, 8, 16, 16] q) { q = Neg(p) }>
            [post] y = Abs(b) }""")

    def edit(m: ir.Model) -> None:
        for node in m.graph.all_nodes():
            if node.op_type == "Exp":
                node.op_type = "Sin"

    feeds = {**FEEDS, "c": np.array(True)}
    finding = explain(model, feeds, Broken(edit), FP32)
    assert finding.nodes == ("branch",)
    assert set(finding.inputs) == {"p", "c"}


def test_a_fault_before_the_lowering_is_said() -> None:
    finding = explain(network(), FEEDS, run, FP32)
    assert finding.node == ""
    assert finding.model is None
    assert "a pass changed it" in finding.note


def test_parts_that_cannot_be_lowered_are_stepped_over() -> None:
    def picky(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
        if len(model.graph) < 8:
            raise UnsupportedError("picky", [])
        return Broken(drop_pad("conv5b"))(model, feeds)

    finding = explain(network(), FEEDS, picky, FP32)
    assert "conv5b" in finding.nodes
    assert 8 <= len(finding.nodes) <= 20


def test_an_engine_that_fails_on_the_whole_is_not_reproduced() -> None:
    def dead(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
        raise RunError("out of memory")

    finding = explain(network(), FEEDS, dead, FP32)
    assert finding.note.startswith("not reproduced: a part of the graph cannot be lowered or run")


def test_no_time_is_said() -> None:
    finding = explain(network(), FEEDS, Broken(drop_pad("conv5b")), FP32, seconds=0)
    assert finding.note == "reproduced; stopped by the time limit"
    assert finding.model is not None


def test_what_is_saved_can_be_run(tmp_path: Path) -> None:
    finding = found(drop_pad("conv5b"))
    paths = finding.save(tmp_path / "failing")
    assert [p.name for p in paths] == ["model.onnx", "inputs.npz", "expected.npz", "README.txt"]
    session = ort.InferenceSession(paths[0], providers=["CPUExecutionProvider"])
    inputs, expected = np.load(paths[1]), np.load(paths[2])
    names = [o.name for o in session.get_outputs()]
    for name, value in zip(names, session.run(None, dict(inputs)), strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)
    text = paths[3].read_text()
    assert "First node whose result is wrong: Conv 'conv5b'" in text
    assert "largest error" in text


def test_what_is_saved_does_not_need_the_source(tmp_path: Path) -> None:
    path = tmp_path / "source.onnx"
    ir.save(network(), path, external_data="source.data", size_threshold_bytes=0)
    finding = found(drop_pad("conv5b"), ir.load(path))
    saved = finding.save(tmp_path / "failing")[0]
    (tmp_path / "source.data").unlink()
    ort.InferenceSession(saved, providers=["CPUExecutionProvider"])


def test_nothing_is_saved_when_nothing_was_found(tmp_path: Path) -> None:
    assert Finding(note="not reproduced").save(tmp_path / "failing") == []
    assert not (tmp_path / "failing").exists()


def test_json() -> None:
    data = json.loads(json.dumps(found(tanh_gelu, budget=TIGHT).to_json()))
    assert data["node"] == "gelu0"
    assert data["nodes"] == ["gelu0"]


def test_the_model_is_not_modified() -> None:
    model = network()
    before = ir.to_proto(model).SerializeToString()
    explain(model, FEEDS, Broken(drop_pad("conv5b")), FP32)
    assert ir.to_proto(model).SerializeToString() == before


def test_an_error_that_builds_up_is_said_to() -> None:
    names = [f"v{i}" for i in range(40)]
    chain = " ".join(f"[n{i}] {b} = Sin({a})" for i, (a, b) in enumerate(itertools.pairwise(names)))
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 20]>
        g (float[1, 8, 16, 16] v0) => (float[1, 8, 16, 16] v39) {{ {chain} }}""")

    def drift(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
        grown = np.float32(1 + 2e-5 * len(model.graph))
        return {name: value * grown for name, value in run(model, feeds).items()}

    finding = explain(model, {"v0": FEEDS["x"]}, drift, FP32)
    assert finding.note.endswith("the error builds up over many nodes")
    assert 10 < len(finding.nodes) < 30


def test_a_kernel_that_the_oracle_shares_is_named() -> None:
    """ONNX Runtime copies where all sizes stay; the message blamed a pass."""
    source = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21]>
        g (float[1,1,1,3] x, float[4] s) => (float[1,1,1,n] y) {
            y = Resize<mode="linear", coordinate_transformation_mode="asymmetric">(x, , s) }""")
    feeds = {"x": np.array([[[[1, 2, 4]]]], np.float32), "s": np.array([1, 1, 1, 1.2], np.float32)}

    def as_written(part: ir.Model, given: Feeds) -> dict[str, Array]:
        session = ort.InferenceSession(ir.to_proto(part).SerializeToString())
        return dict(
            zip(
                [str(v.name) for v in part.graph.outputs],
                session.run(None, dict(given)),
                strict=True,
            )
        )

    found = explain(source, feeds, as_written, FP32)
    assert found.note.startswith("the engine computes Resize")
    assert "as ONNX Runtime does, which its definition does not" in found.note
