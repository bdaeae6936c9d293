"""Models whose operands do not go together are refused first, by node and sizes."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.pipeline.entry import check, export
from edgeinfer.convert.verify import vectors
from edgeinfer.convert.verify.contradictions import (
    contradictions,
    mixed_types,
    refuse_contradictions,
)
from edgeinfer.errors import SourceError, UsageError
from edgeinfer.types import TensorSpec

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'


def model(text: str, **weights: tuple[int, ...]) -> ir.Model:
    proto = onnx.parser.parse_model(f"{HEAD} {text}")
    for name, shape in weights.items():
        values = np.ones(shape, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    made: ir.Model = ir.from_proto(proto)
    return made


WRONG: dict[str, tuple[str, dict[str, tuple[int, ...]], str]] = {
    "bias": (
        "g (float[1,3,8,8] x) => (float[1,8,6,6] y) { [c] y = Conv (x, w, b) }",
        {"w": (8, 3, 3, 3), "b": (7,)},
        "Conv 'c' of 'x' [1, 3, 8, 8], 'w' [8, 3, 3, 3], 'b' [7]: length of the bias "
        "(one for each filter): expected 8, received 7",
    ),
    "channels": (
        "g (float[N,3,8,8] x) => (float[N,8,6,6] y) { [c] y = Conv (x, w) }",
        {"w": (8, 4, 3, 3)},
        "channels of the input (the filter's times the groups): expected 4, received 3",
    ),
    "transposed": (
        "g (float[N,3,8,8] x) => (float y) { [c] y = ConvTranspose (x, w) }",
        {"w": (4, 8, 3, 3)},
        "channels of the input (the filter's first size): expected 4, received 3",
    ),
    "matmul": (
        "g (float[N,4] x) => (float[N,3] y) { [m] y = MatMul (x, w) }",
        {"w": (5, 3)},
        "MatMul 'm' of 'x' [N, 4], 'w' [5, 3]: inner size (the second's): expected 5, received 4",
    ),
    "gemm": (
        "g (float[N,4] x) => (float[N,3] y) { [m] y = Gemm (x, w, b) }",
        {"w": (4, 3), "b": (5,)},
        "bias of shape [5] does not fit [?, 3]",
    ),
    "concat": (
        "g (float[1,4,8] x, float[1,4,9] z) => (float[1,8,8] y)"
        " { r = Relu (x) [c] y = Concat <axis = 1> (r, z) }",
        {},
        "Concat 'c' of 'r' [1, 4, 8], 'z' [1, 4, 9]: size of input 1 in axis 2 (the first's): "
        "expected 8, received 9",
    ),
    "add": (
        "g (float[N,4] x) => (float[N,4] y) { [a] y = Add (x, w) }",
        {"w": (5,)},
        "sizes 4 and 5 are neither equal nor 1",
    ),
    "norm": (
        "g (float[N,4] x) => (float[N,4] y) { [n] y = LayerNormalization (x, w) }",
        {"w": (5,)},
        "scale of shape [5] does not fit [4]",
    ),
    "batch norm": (
        "g (float[N,3,4] x) => (float[N,3,4] y) { [n] y = BatchNormalization (x, a, a, a, a) }",
        {"a": (5,)},
        "one value a channel: expected 3, received 5",
    ),
    "lstm": (
        "g (float[T,1,3] x) => (float y) { [l] y = LSTM <hidden_size = 4> (x, w, r) }",
        {"w": (1, 16, 5), "r": (1, 16, 4)},
        "size of the input (W's last): expected 5, received 3",
    ),
    "reshape": (
        "g (float[2,4] x) => (float[3,3] y) <int64[2] s = {3, 3}> { [r] y = Reshape (x, s) }",
        {},
        "8 elements do not fill [3, 3]",
    ),
    "without a name": (
        "g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }",
        {"w": (5, 3)},
        "MatMul 'that gives y' of",
    ),
    "found by onnx alone": (
        "g (float[2,4] x) => (float y) { [t] y = Transpose <perm = [0, 0]> (x) }",
        {},
        "Transpose 't' of 'x' [2, 4]: ",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_each_is_told_by_node_and_sizes(case: str) -> None:
    text, weights, said = WRONG[case]
    (line,) = contradictions(model(text, **weights))
    assert said in line


def test_what_fits_is_left_alone() -> None:
    right = model(
        "g (float[N,4,H,H] x) => (float[N,9,9,9,9] y) <int64[2] s = {0, -1}>"
        " { a = Conv <group = 2> (x, w, b) c = PRelu (a, p) d = Concat <axis = 1> (c, c)"
        " e = Add (d, c1) f = Reshape (e, s) y = Relu (f) }",
        **{"w": (8, 2, 3, 3), "b": (8,), "p": (8, 1, 1), "c1": (1, 16, 1, 1)},
    )
    assert contradictions(right) == []


def test_all_nodes_are_listed() -> None:
    text = "g (float[N,4] x) => (float y, float z) { y = MatMul (x, w) z = Add (x, w) }"
    assert len(contradictions(model(text, w=(5, 3)))) == 2


def test_they_are_refused_before_anything_else(tmp_path: Path) -> None:
    text, weights, said = WRONG["bias"]
    for call in (
        lambda m: export(m, tmp_path / "m.edge", targets=("onnxruntime",)),
        lambda m: check(m, targets=("onnxruntime",)),
    ):
        with pytest.raises(SourceError) as caught:
            call(ir.to_proto(model(text, **weights)))
        assert "the model cannot run: it has a node whose operands do not go together:" in str(
            caught.value
        )
        assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", ["bias", "transposed"])
def test_weights_that_differ_are_refused_though_an_engine_runs_them(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime 1.23 runs a convolution whose bias is short, and reads beyond it."""
    monkeypatch.setattr(vectors, "make_vectors", lambda *args, **options: [])
    text, weights, said = WRONG[case]
    given, inputs = model(text, **weights), [TensorSpec("x", "float32", (1, 3, 8, 8))]
    if case == "bias":
        with pytest.raises(SourceError, match="expected 8, received 7"):
            refuse_contradictions(given, inputs)
    else:
        # That of the input is what onnx's inference says.
        assert said in "".join(contradictions(given))
        refuse_contradictions(given, inputs)


def test_fixed_sizes_that_do_not_run_ask_for_no_other_sizes(tmp_path: Path) -> None:
    """What no rule knows: the engine's words, and no advice that cannot help."""
    text = (
        "g (float[4] x, float[3] u) => (float[4] y) <int64[2,1] i = {0, 1}>"
        " { y = ScatterND (x, i, u) }"
    )
    with pytest.raises(SourceError, match="does not run with its own sizes"):
        export(ir.to_proto(model(text)), tmp_path / "m.edge", targets=("onnxruntime",))
    loose = text.replace("float[4] x", "float[N] x")
    with pytest.raises(UsageError, match="--input-shape"):
        export(ir.to_proto(model(loose)), tmp_path / "m.edge", targets=("onnxruntime",))


def test_types_that_do_not_go_together_are_the_models_fault_and_told_once(tmp_path: Path) -> None:
    made = model("g (float[N,3,8,8] x) => (float[N,8,6,6] y) { [c] y = Conv (x, w) }")
    weights = np.ones((8, 3, 3, 3), np.float64)
    proto = ir.to_proto(made)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    (line,) = mixed_types(ir.from_proto(proto))
    assert line == "Conv 'c': 'x' is float, 'w' is double: one type is expected"
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(SourceError, match=r"types do not agree") as raised:
        export(tmp_path / "m.onnx", tmp_path / "m.edge", targets=["onnxruntime", "openvino"])
    assert str(raised.value).count("Conv 'c'") == 1


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3] x, int64[2] s) => (float[3,2] y) { y = Reshape (x, s) }",
        "g (bool[2] c, float[2] x, float[2] z) => (float[2] y) { y = Where (c, x, z) }",
        "g (float[2] x, int32[1] i) => (float[1] y) { y = Gather (x, i) }",
    ],
)
def test_types_that_an_operator_takes_are_none(text: str) -> None:
    assert mixed_types(model(text)) == []
