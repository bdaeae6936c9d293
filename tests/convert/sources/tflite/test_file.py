"""The file itself: signatures, graphs inside of each other, state, and everything damaged."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower import tflite
from edgeinfer.convert.lower.tflite.graph import Graph, Tensor
from edgeinfer.convert.lower.tflite.writer import FILE_IDENTIFIER, schema, write
from edgeinfer.convert.sources import read
from edgeinfer.convert.sources.tflite import read_file
from edgeinfer.convert.sources.tflite.ops.recurrent import STATE
from edgeinfer.convert.sources.tflite.registry import READERS
from edgeinfer.convert.verify import Vector
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.errors import EdgeInferError, SourceError, UnsupportedError, UsageError, VerifyError
from tests.convert.sources.tflite.reading import floats, ops, run_onnx, same, written

RELU = {"x": np.array([-1, 2], np.float32)}


def _relu(g: Graph, x: Tensor) -> Tensor:
    return g.emit("RELU", [x], x.shape)


def _edited(path: Path, edit: Any) -> Path:
    """Change a file's tables."""
    import flatbuffers

    s = schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(path.read_bytes(), 0))
    edit(s, model)
    builder = flatbuffers.Builder(1 << 12)
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    path.write_bytes(builder.Output())
    return path


def test_names_types_and_layout_are_those_of_the_file() -> None:
    found = same(_relu, x=floats(1, 4, 5, 3), sizes={"x": (None, 4, 5, 3)})
    (x,), (y,) = found.model.graph.inputs, found.model.graph.outputs
    assert (x.name, y.name) == ("x", "y0")
    assert list(x.shape or ())[1:] == [4, 5, 3]
    assert x.shape is not None
    assert isinstance(x.shape[0], ir.SymbolicDim)
    assert (found.record.format, len(found.record.sha256)) == ("tflite", 64)


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    w = floats(64, 8, 8, 64)
    options = {"padding": 0, "stride_h": 1, "stride_w": 1}
    options |= {"dilation_h_factor": 1, "dilation_w_factor": 1, "fused_activation_function": 0}

    def build(g: Graph, x: Tensor) -> Tensor:
        return g.emit("CONV_2D", [x, g.const(w), g.const(floats(64))], (1, 1, 1, 64), **options)

    found = read_file(written(tmp_path / "m.tflite", build, {"x": floats(1, 8, 8, 64)}))
    (weight,) = (
        v.const_value
        for v in found.model.graph.initializers.values()
        if v.const_value is not None and v.const_value.nbytes == w.nbytes
    )
    assert isinstance(weight, ir.LazyTensor)
    np.testing.assert_array_equal(weight.numpy(), w.transpose(0, 3, 1, 2))


def test_a_tensor_may_be_an_output_twice_and_an_input_an_output() -> None:
    found = same(lambda g, x: [g.emit("RELU", [x], x.shape), x], x=RELU["x"])
    assert [o.name for o in found.model.graph.outputs] == ["y0", "y1"]


def _two_signatures(path: Path, keys: tuple[str, str]) -> Path:
    written(path, _relu, RELU)

    def edit(s: Any, model: Any) -> None:
        first = model.signatureDefs[0]
        graph = s.SubGraphT.InitFromObj(s.Model.GetRootAs(path.read_bytes(), 0).Subgraphs(0))
        code = s.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = s.BuiltinOperator.NEG
        code.version = 1
        model.operatorCodes.append(code)
        graph.operators[0].opcodeIndex = len(model.operatorCodes) - 1
        model.subgraphs.append(graph)
        second = s.SignatureDefT()
        second.inputs, second.outputs = first.inputs, first.outputs
        second.subgraphIndex = 1
        first.signatureKey, second.signatureKey = keys
        model.signatureDefs.append(second)

    return _edited(path, edit)


def test_one_of_several_signatures_is_chosen(tmp_path: Path) -> None:
    path = _two_signatures(tmp_path / "m.tflite", ("keep", "turn"))
    with pytest.raises(UsageError, match="several signatures, 'keep', 'turn'; choose one"):
        read(path)
    with pytest.raises(UsageError, match="no signature 'x'; it has 'keep', 'turn'"):
        read(path, signature="x")
    for key, op in (("keep", "Relu"), ("turn", "Neg")):
        found = read(path, signature=key)
        assert ops(found.model) == [op]
        with Oracles(found.model, original=found.original) as oracles:
            (answer,) = oracles.expected([Vector(RELU, "test")]).answers
        assert answer.agreed == ("litert", "float64")


def test_the_default_signature_needs_no_name(tmp_path: Path) -> None:
    path = _two_signatures(tmp_path / "m.tflite", ("other", "serving_default"))
    assert ops(read(path).model) == ["Neg"]


def test_a_signature_is_for_tflite_only(tmp_path: Path) -> None:
    model = read_file(written(tmp_path / "m.tflite", _relu, RELU)).model
    with pytest.raises(UsageError, match=r"signature is for \.tflite files"):
        read(model, signature="a")


def _body(name: str, x: Tensor, code: str, *, logical: bool = False) -> Graph:
    g = Graph(name, f"{name}/")
    inner = g.tensor(x.shape, x.dtype)
    g.inputs = [inner]
    limit = g.const(np.full(x.shape, 10, np.float32))
    if logical:
        less = g.emit("LESS", [inner, limit], x.shape, np.bool_)
        g.outputs = [g.emit("REDUCE_ANY", [less, g.const([0], np.int32)], (), keep_dims=False)]
    else:
        g.outputs = [g.emit(code, [inner, limit], x.shape, fused_activation_function=0)]
    return g


def test_branches() -> None:
    def build(g: Graph, c: Tensor, x: Tensor) -> Tensor:
        out = g.tensor(x.shape, x.dtype)
        op = g.add("IF", [c, x], [out])
        op.bodies = {
            "then_subgraph_index": _body("then", x, "ADD"),
            "else_subgraph_index": _body("else", x, "SUB"),
        }
        return out

    x = floats(3)
    found = same(build, {"c": np.array(False), "x": x}, c=np.array(True), x=x)
    assert ops(found.model)[0] == "If"


def test_loops_end_when_their_condition_says_so() -> None:
    def build(g: Graph, x: Tensor) -> Tensor:
        out = g.tensor(x.shape, x.dtype)
        op = g.add("WHILE", [x], [out])
        cond = _body("cond", x, "", logical=True)
        body = Graph("body", "body/")
        inner = body.tensor(x.shape, x.dtype)
        body.inputs = [inner]
        operands = [inner, body.const(np.float32(3))]
        body.outputs = [body.emit("MUL", operands, x.shape, fused_activation_function=0)]
        op.bodies = {"cond_subgraph_index": cond, "body_subgraph_index": body}
        return out

    start = np.array([1, 2], np.float32)
    found = same(build, {"x": np.array([50, 60], np.float32)}, x=start)
    np.testing.assert_array_equal(run_onnx(found.model, {"x": start})["y0"], [27, 54])


def test_a_graph_inside_of_itself_is_no_end(tmp_path: Path) -> None:
    def build(g: Graph, c: Tensor, x: Tensor) -> Tensor:
        out = g.tensor(x.shape, x.dtype)
        op = g.add("IF", [c, x], [out])
        op.bodies = {
            "then_subgraph_index": _body("then", x, "ADD"),
            "else_subgraph_index": _body("else", x, "SUB"),
        }
        return out

    path = written(tmp_path / "m.tflite", build, {"c": np.array(True), "x": floats(3)})

    def loop(s: Any, model: Any) -> None:
        model.subgraphs[0].operators[0].builtinOptions.thenSubgraphIndex = 0

    with pytest.raises(SourceError, match="damaged"):
        read(_edited(path, loop))


@pytest.mark.parametrize("time_major", [False, True])
def test_fused_lstm_starts_from_zero(time_major: bool) -> None:
    hidden, size = 4, 3
    shape = (5, 2, size) if time_major else (2, 5, size)

    def build(g: Graph, x: Tensor) -> Tensor:
        rng = np.random.default_rng(1)

        def made(*dims: int) -> Tensor:
            return g.const(rng.standard_normal(dims).astype(np.float32))

        states = [g.tensor((2, hidden), np.float32) for _ in range(2)]
        for state in states:
            state.is_variable = True
        operands: list[Tensor | None] = [x, *(made(hidden, size) for _ in range(4))]
        operands += [*(made(hidden, hidden) for _ in range(4)), *(made(hidden) for _ in range(3))]
        operands += [*(made(hidden) for _ in range(4)), None, None, *states, *[None] * 4]
        return g.emit(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            operands,
            (*shape[:2], hidden),
            fused_activation_function=4,
            time_major=time_major,
            cell_clip=0.0,
            proj_clip=0.0,
            asymmetric_quantize_inputs=False,
            diagonal_recurrent_tensors=False,
        )

    found = same(build, x=floats(*shape))
    assert STATE in found.notes.lines


def test_all_that_cannot_be_read_is_listed_by_name(tmp_path: Path) -> None:
    def build(g: Graph, x: Tensor) -> Tensor:
        a = g.emit("RELU", [x], x.shape)
        b = g.emit("ABS", [a], x.shape)
        return g.emit("NEG", [b], x.shape)

    path = written(tmp_path / "m.tflite", build, RELU)

    def edit(s: Any, model: Any) -> None:
        for code, name in zip(model.operatorCodes, ("CUSTOM", "CUSTOM", "RFFT2D"), strict=True):
            number = getattr(s.BuiltinOperator, name)
            code.builtinCode, code.deprecatedBuiltinCode = number, min(number, 127)
        model.operatorCodes[0].customCode = "Mixture"
        model.operatorCodes[1].customCode = "Other"

    with pytest.raises(UnsupportedError) as caught:
        read(_edited(path, edit))
    assert [p.op for p in caught.value.problems] == [
        "Mixture",
        "Other",
        "RFFT2D",
    ]


@pytest.mark.parametrize(
    "content",
    [b"", b"TFL3", b"\x1c\0\0\0TFL3", b"\0" * 99, b"\xff\xff\xff\xffTFL3" + b"\xff" * 50],
)
def test_what_is_no_tflite_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def _conv_net(path: Path) -> Path:
    options = {"padding": 0, "stride_h": 1, "stride_w": 1, "fused_activation_function": 1}
    options |= {"dilation_h_factor": 1, "dilation_w_factor": 1}

    def build(g: Graph, x: Tensor) -> list[Tensor]:
        operands = [x, g.const(floats(4, 3, 3, 3)), g.const(floats(4))]
        y = g.emit("CONV_2D", operands, (1, 6, 6, 4), **options)
        z = g.emit("MEAN", [y, g.const([1, 2], np.int32)], (1, 4), keep_dims=False)
        z = g.emit("RESHAPE", [z, g.const([4], np.int32)], (4,), new_shape=[4])
        parts = [g.tensor((2,), np.float32), g.tensor((2,), np.int32)]
        g.add("TOPK_V2", [z, g.const(2, np.int32)], parts)
        return [y, *parts]

    return written(path, build, {"x": floats(1, 8, 8, 3)})


def test_300_damages_end_in_a_model_or_one_clear_error(tmp_path: Path) -> None:
    raw = _conv_net(tmp_path / "whole.tflite").read_bytes()
    path, rng = tmp_path / "m.tflite", random.Random(0)
    errors: list[str] = []
    for turn in range(300):
        broken = bytearray(raw)
        if turn % 3 == 0:
            broken = broken[: rng.randrange(len(raw))]
        else:
            for _ in range(rng.choice([1, 1, 2, 6])):
                broken[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            read(path)
        except UnsupportedError:
            errors.append("unsupported")
        except EdgeInferError as e:
            errors.append(str(e))
    assert len(errors) > 150
    assert not [e for e in errors if "\n" in e]


def test_every_operator_that_is_written_is_read() -> None:
    known = {k for k in vars(schema().BuiltinOperator) if not k.startswith("_")}
    folder = Path(tflite.__file__).parent
    texts = [f.read_text("utf-8") for f in folder.rglob("*.py")]
    named = {w for text in texts for w in re.findall(r'"([A-Z][A-Z0-9_]+)"', text)}
    assert (named & known) - READERS.codes() <= NOT_WRITTEN


NOT_WRITTEN = frozenset(
    {
        *("CUSTOM", "DELEGATE", "LSTM", "RNN", "UNIDIRECTIONAL_SEQUENCE_RNN"),
        *("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "VAR_HANDLE"),
    }
)
"""Names that stand in the writer's tables, or mean something else there."""


def test_a_file_that_litert_refuses_has_no_oracle(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    g = Graph()
    x = g.tensor((2, 3), np.float32, "x")
    g.inputs = [x]
    g.outputs = [
        g.emit("CUMSUM", [x, g.const(7, np.int32)], (2, 3), exclusive=False, reverse=False)
    ]
    write(g, path, input_names=["x"], output_names=["y"])
    found = read_file(path)
    with (
        Oracles(found.model, original=found.original) as oracles,
        pytest.raises(VerifyError, match="LiteRT cannot run the file itself"),
    ):
        oracles.expected([Vector({"x": floats(2, 3)}, "test")])


def test_tables_that_share_a_long_vector_are_refused(tmp_path: Path) -> None:
    import flatbuffers

    s, count = schema(), 2000

    def vector(put: Any, values: list[int]) -> int:
        builder.StartVector(4, len(values), 4)
        for value in values:
            put(value)
        return int(builder.EndVector())

    def table(name: str, **fields: int) -> int:
        getattr(s, f"{name}Start")(builder)
        for field, value in fields.items():
            getattr(s, f"{name}Add{field}")(builder, value)
        return int(getattr(s, f"{name}End")(builder))

    builder = flatbuffers.Builder(1 << 12)
    offset = builder.PrependUOffsetTRelative
    op = table("Operator", Inputs=vector(builder.PrependInt32, [0] * count))
    tensors, ops = vector(offset, [table("Tensor")]), vector(offset, [op] * count)
    graphs = vector(offset, [table("SubGraph", Tensors=tensors, Operators=ops)])
    codes, buffers = (vector(offset, [table(n)]) for n in ("OperatorCode", "Buffer"))
    model = table("Model", Version=3, Subgraphs=graphs, OperatorCodes=codes, Buffers=buffers)
    builder.Finish(model, FILE_IDENTIFIER)
    path = tmp_path / "m.tflite"
    path.write_bytes(builder.Output())
    with pytest.raises(SourceError, match="share vectors"):
        read(path)


def test_a_sparse_tensor_is_not_far_larger_than_its_file(tmp_path: Path) -> None:
    def spread(s: Any, model: Any) -> None:
        def level() -> Any:
            found = s.DimensionMetadataT()
            found.format = s.DimensionType.SPARSE_CSR
            kind = s.SparseIndexVector.Int32Vector
            found.arraySegmentsType = found.arrayIndicesType = kind
            found.arraySegments, found.arrayIndices = s.Int32VectorT(), s.Int32VectorT()
            found.arraySegments.values, found.arrayIndices.values = [0, 1], [0]
            return found

        sparse = s.SparsityParametersT()
        sparse.traversalOrder, sparse.blockMap = [0, 1], []
        sparse.dimMetadata = [level(), level()]
        tensor = model.subgraphs[0].tensors[0]
        tensor.shape, tensor.sparsity = [30_000, 30_000], sparse

    path = _edited(written(tmp_path / "m.tflite", _relu, RELU), spread)
    with pytest.raises(SourceError, match="far more elements than a file of its size"):
        read(path)
