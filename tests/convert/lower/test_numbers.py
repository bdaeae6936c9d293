"""Numbers that mean nothing are refused before anything divides by them or counts up to them."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.backends.process import isolation
from edgeinfer.convert.lower.core.named import MalformedRefusal
from edgeinfer.convert.lower.numbers import refuse_numbers
from edgeinfer.errors import EdgeInferError, SourceError

MANY, HUGE, LONG = 2**31 - 1, 2**63 - 1, 2**62

BAD = {
    f"Split<num_outputs={HUGE}>(x)": f"num_outputs={HUGE}, expected 1 to 1",
    "Split<num_outputs=0>(x)": "num_outputs=0, expected 1 to 1",
    "Split<axis=1>(x, two)": "2 sizes for 1 results",
    f"LayerNormalization<axis={2**31}>(x, x)": "axis=2147483648, expected -64 to 64",
    f"Softmax<axis={-LONG}>(x)": "axis=-4611686018427387904, expected -64 to 64",
    f"Flatten<axis={MANY}>(x)": "axis=2147483647, expected",
    "Cast<to=-1>(x)": "to=-1, which is no type",
    "Cast<to=0>(x)": "to=0, which is no type",
    f"EyeLike<dtype={HUGE}>(x)": "which is no type",
    "MelWeightMatrix<output_datatype=0>(n, n, n, f, f)": "output_datatype=0, which is no type",
    f"EyeLike<k={LONG}>(x)": "k=4611686018427387904, expected -2147483648 to",
    f"Dropout<unheard={HUGE}>(x)": "unheard=9223372036854775807, expected",
    "MaxPool<kernel_shape=[2, 2], strides=[1, 0]>(x)": "strides=0, expected 1 to",
    f"AveragePool<kernel_shape=[{MANY}, 2]>(x)": "kernel_shape=2147483647, expected 1 to",
    'MaxPool<kernel_shape=[2, 2], auto_pad="SAME_UPPER", pads=[1, 1]>(x)': "pads: 2 numbers, wh",
    "LpPool<kernel_shape=[2, 2], pads=[0, 0, 0, -1]>(x)": "pads=-1, expected 0 to",
    "Conv<group=0>(x, x)": "group=0, expected 1 to",
    "Conv<dilations=[1]>(x, x)": "dilations: 1 numbers, where it takes 2",
    "ConvTranspose<output_padding=[0, -1]>(x, x)": "output_padding=-1, expected 0",
    "DeformConv<offset_group=0>(x, x, x)": "offset_group=0, expected 1 to",
    "Col2Im<strides=[1, 0]>(x, two, two)": "strides=0, expected 1",
    "Col2Im(x, two, zero)": "operand 2=0, expected 1",
    "Col2Im(x, many, two)": "makes 4294967294 elements",
    "ConstantOfShape(many)": "makes 4294967294 elements",
    "AffineGrid(x, many)": "makes 4294967294 elements",
    "HannWindow(huge)": "operand 0=9223372036854775807, expected 0 to",
    "Range(low, n, one)": "makes 4611686018427387920 elements",
    "Range(n, huge, zero)": "from 16 to 9223372036854775807 by 0",
    "DFT(x, , four)": "of a tensor of rank 4",
    "STFT(x, zero)": "operand 1=0, expected 1",
    "SplitToSequence<axis=3>(x, two)": "sizes of 4 together, where there are 5",
    "SplitToSequence(x, zero)": "operand 1=0, expected 1",
    "TopK(x, n)": "the 16 largest of 5",
    "TopK(x, low)": "operand 1=-4611686018427387904, expected 0",
    "GRU<hidden_size=0>(x, x, x)": "hidden_size=0, expected 1",
    "DequantizeLinear<block_size=-1>(x, f)": "block_size=-1, expected 0",
    'TfIdfVectorizer<mode="TF", max_skip_count=5000>(x)': "max_skip_count=5000, expected",
    'TfIdfVectorizer<mode="TF", ngram_counts=[0, 9], pool_int64s=[1]>(x)': "of 1 words",
    "com.microsoft.MatMulNBits<K=32, N=4, block_size=0>(x, x, f)": "block_size=0, expected 16",
    "com.microsoft.MatMulNBits<K=32, N=4, block_size=24>(x, x, f)": "no power of two",
    "com.microsoft.MatMulNBits<K=0, N=4, block_size=16>(x, x, f)": "K=0, expected 1",
    "Constant<value_int=1, value_ints=[1]>()": "2 values, where it takes one",
}

GOOD = [
    "Split<num_outputs=1>(x)",
    f"Constant<value_int={HUGE}>()",
    f"SoftmaxCrossEntropyLoss<ignore_index={-LONG}>(x, n)",
    f"Shape<start=0, end={HUGE}>(x)",
    "Cast<to=16>(x)",
    "QuantizeLinear<axis=-1, output_dtype=0, block_size=0>(x, f)",
    "MaxPool<kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1]>(x)",
    "Conv<group=1>(x, x)",
    "Range(n, low, one)",
    "ConstantOfShape(two)",
    "TopK<axis=2>(x, four)",
    "SplitToSequence<axis=2>(x, two)",
    "com.microsoft.MatMulNBits<K=32, N=4, block_size=128, bits=4>(x, x, f)",
    f"other.Anything<axis={HUGE}>(x)",
]

CONSTANTS = (
    f"int64 low = {{{-LONG}}}, int64 huge = {{{HUGE}}}, int64 n = {{16}}, int64 one = {{1}}, "
    "int64 four = {4}, int64 zero = {0}, float f = {0.5}, "
    f"int64[2] two = {{2, 2}}, int64[2] many = {{2, {MANY}}}"
)


def written(lines: list[str]) -> onnx.ModelProto:
    nodes = [f"y{number} = {line}" for number, line in enumerate(lines)]
    text = f"g (float[1,2,4,5] x) => (float y0) <{CONSTANTS}> {{ {' '.join(nodes)} }}"
    domains = '"" : 21, "com.microsoft" : 1, "other" : 1'
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> {text}")


def test_what_means_nothing_is_refused() -> None:
    for node, reason in zip(ir.from_proto(written([*BAD])).graph, BAD.values(), strict=True):
        with pytest.raises(MalformedRefusal) as caught:
            refuse_numbers(node)
        assert reason in caught.value.detail


def test_what_means_something_is_taken() -> None:
    for node in ir.from_proto(written(GOOD)).graph:
        refuse_numbers(node)


@pytest.mark.skipif(not isolation.SUPPORTED, reason="needs a process of its own")
def test_no_process_ends_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime divided by what is left of it in 32 bits, in the process that reads."""
    monkeypatch.delenv(isolation.IN_PROCESS, raising=False)
    onnx.save(written([f"Split<num_outputs={HUGE}>(x)"]), tmp_path / "m.onnx")
    with pytest.raises(SourceError, match=r"node '#0' \(Split\): num_outputs=9223372036854775807"):
        edgeinfer.check(tmp_path / "m.onnx", targets=["onnxruntime"])


def test_of_an_old_model_it_is_refused_before_onnx_raises_it(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 6]> g (float[1,2,4,5] x) => (float[1,2,4,5] y) '
        "{ y = MaxPool<kernel_shape=[2, 2], strides=[0, 1]>(x) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(SourceError, match="strides=0, expected 1 to"):
        edgeinfer.check(tmp_path / "m.onnx", targets=["onnxruntime"])


def test_an_output_that_an_operator_does_not_give_is_no_bug(tmp_path: Path) -> None:
    """The definition gives statistics where training_mode is 1; ONNX Runtime takes any number."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2,3,4] x) => (float[2,3,4] y, '
        "float[3] m, float[3] v) <float[3] w = {1, 1, 1}> "
        "{ y, m, v = BatchNormalization<training_mode=2>(x, w, w, w, w) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(EdgeInferError):
        edgeinfer.export(model, tmp_path / "m.edge", targets=["onnxruntime"])
