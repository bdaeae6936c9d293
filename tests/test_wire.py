"""The outermost fields of protobuf messages."""

import onnx
import onnx.parser

from edgeinfer.wire import walk


def test_fields_of_an_onnx_model() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["":17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    wire = walk(model.SerializeToString())
    assert wire is not None
    assert wire.fields == {1: 0, 7: 2, 8: 2}
    assert wire.missing_bytes == 0


def test_a_field_that_reaches_beyond_the_end() -> None:
    wire = walk(b"\x08\x01\x3a\x0aabc")
    assert wire is not None
    assert (wire.fields, wire.missing_bytes) == ({1: 0, 7: 2}, 7)


def test_what_is_no_message() -> None:
    assert walk(b"\x00\x01") is None  # field number 0
    assert walk(b"\x0b") is None  # groups
    assert walk(b"\x0f") is None  # wire type 7
    assert walk(b"\x08\x01\x0a\x00") is None  # one field in two wire types
    assert walk(b"\x08" + b"\xff" * 11) is None  # a varint without an end


def test_fixed_width_fields_are_skipped() -> None:
    wire = walk(b"\x0d" + bytes(4) + b"\x11" + bytes(8))
    assert wire is not None
    assert (wire.fields, wire.missing_bytes) == ({1: 5, 2: 1}, 0)
