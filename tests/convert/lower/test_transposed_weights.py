"""A matrix and its transpose are stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.transposed_weights import share_transposed
from edgeinfer.convert.passes.transposed_constants import twins
from tests.convert.quantize.conftest import graph

TABLE = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
BODY = """<ir_version: 10, opset_import: ["" : 24]>
    net (int64[4] ids, float[4,32] x) => (float[4,32] e, float[4,64] y)
    <float[64,32] table, float[32,64] turned> {{
      e = Gather(table, ids)
      y = {reader}
    }}"""


def made(reader: str, turned: np.ndarray) -> ir.Model:
    return graph(BODY.format(reader=reader), table=TABLE, turned=turned)


@pytest.mark.parametrize("floats", [False, True])
def test_what_a_product_reads_is_turned_when_the_file_is_opened(floats: bool) -> None:
    model = made("MatMul(x, turned)", np.ascontiguousarray(TABLE.T))
    assert share_transposed(model, floats=floats) == 1
    assert [*model.graph.initializers] == ["table"]
    product = next(n for n in model.graph if n.op_type == "MatMul")
    maker = product.inputs[1].producer() if product.inputs[1] is not None else None
    assert maker is not None
    assert (maker.op_type, maker.inputs[0]) == ("Transpose", model.graph.initializers["table"])


@pytest.mark.parametrize(
    ("reader", "change"),
    [
        # Another number; a reader that is no product; rows are taken from both.
        ("MatMul(x, turned)", 1.0),
        ("Add(turned, turned)", 0.0),
        ("Gather<axis = 1>(turned, ids)", 0.0),
    ],
)
def test_others_stay(reader: str, change: float) -> None:
    turned = np.ascontiguousarray(TABLE.T)
    turned[5, 5] += change
    model = made(reader, turned)
    assert share_transposed(model, floats=False) == 0
    assert {*model.graph.initializers} == {"table", "turned"}


def test_integers_are_turned_before_floats_are_made_of_them_or_after() -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    net (int64[4] ids, float[4,32] x) => (int8[4,32] e, float[4,64] y)
    <int8[64,32] table, int8[32,64] turned, float[64] s> {
      e = Gather(table, ids)
      w = DequantizeLinear<axis = 1>(turned, s)
      y = MatMul(x, w)
    }"""
    whole = np.rint(TABLE * 40).astype(np.int8)
    arrays: dict[str, Any] = {
        "table": whole,
        "turned": np.ascontiguousarray(whole.T),
        "s": TABLE[:, 0].copy(),
    }
    before, after = graph(text, **arrays), graph(text, **arrays)
    assert share_transposed(before, floats=False) == share_transposed(after, floats=True) == 1
    assert [n.op_type for n in before.graph] == [
        *("Transpose", "Gather", "DequantizeLinear", "MatMul"),
    ]
    assert [n.op_type for n in after.graph] == [
        *("Gather", "DequantizeLinear", "Transpose", "MatMul"),
    ]
    scaled = next(n for n in after.graph if n.op_type == "DequantizeLinear")
    assert scaled.attributes["axis"].as_int() == 0
    assert scaled.outputs[0].shape == ir.Shape([64, 32])


def test_blocks_of_weights_are_not_turned() -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    net (int64[4] ids, float[4,32] x) => (int8[4,32] e, float[4,64] y)
    <int8[64,32] table, int8[32,64] turned, float[2,64] s> {
      e = Gather(table, ids)
      w = DequantizeLinear<axis = 0, block_size = 16>(turned, s)
      y = MatMul(x, w)
    }"""
    whole = np.rint(TABLE * 40).astype(np.int8)
    model = graph(text, table=whole, turned=np.ascontiguousarray(whole.T), s=TABLE[:2].repeat(2, 1))
    assert share_transposed(model, floats=True) == 0


def test_twins_are_told_by_their_bytes() -> None:
    def value(name: str, array: np.ndarray) -> ir.Value:
        found = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        owner = ir.Graph([], [], nodes=[], initializers=[found], name=name)
        assert owner.initializers
        return found

    odd = TABLE.copy()
    odd[0, :2] = np.nan, 0.0
    minus = odd.T.copy()
    minus[1, 0] = -0.0
    first, same, other = value("a", odd), value("b", odd.T.copy()), value("c", minus)
    small = [value("d", TABLE[:4, :4].copy()), value("e", TABLE[:4, :4].T.copy())]
    assert twins([first, other, *small]) == {}
    assert twins([first, other, same]) == {first: same, same: first}


def test_of_a_transpose_one_product_of_integers_is_made() -> None:
    text = """<ir_version: 10, opset_import: ["" : 24]>
    net (int64[4] ids, uint8[4,32] x) => (int8[4,32] e, int32[4,64] y, int32[4,64] z)
    <int8[64,32] table, int8[32,64] turned> {{
      e = Gather(table, ids)
      y = MatMulInteger(x, turned)
      z = {other}
    }}"""
    whole = np.rint(TABLE * 40).astype(np.int8)
    arrays: dict[str, Any] = {"table": whole, "turned": np.ascontiguousarray(whole.T)}
    one = graph(text.format(other="Add(y, y)"), **arrays)
    two = graph(text.format(other="MatMulInteger(x, turned)"), **arrays)
    assert share_transposed(one, floats=False) == 1
    assert share_transposed(two, floats=False) == 0
