"""Messages with too many parts are refused before they are read."""

import time

import pytest

from edgeinfer.runtime.serve.wire import MOST_FIELDS, MOST_MESSAGES, NUMBER, look

pytest.importorskip("google.protobuf")

from edgeinfer.runtime.serve.messages import messages


def test_what_clients_send_passes() -> None:
    kind = messages()["ModelInferRequest"]
    request = kind(model_name="m", id="1")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 1 << 16])
    tensor.contents.fp32_contents.extend([1.5] * (1 << 16))
    request.raw_input_contents.append(bytes(1 << 20))
    request.parameters["priority"].int64_param = 3
    assert look(kind.DESCRIPTOR, request.SerializeToString()).problem == ""


@pytest.mark.parametrize("part", [b"\x2a\x00", b"\x2a\x02\x22\x00", b"\x22\x00"])
def test_many_empty_messages_do_not(part: bytes) -> None:
    """64 MB of them took 2.7 GB."""
    kind = messages()["ModelInferRequest"]
    raw = part * (4 * MOST_MESSAGES)
    start = time.process_time()
    assert "tensors and parameters" in look(kind.DESCRIPTOR, raw).problem
    assert time.process_time() - start < 5


def test_neither_do_many_small_fields() -> None:
    kind = messages()["ModelInferRequest"]
    assert "send tensors raw" in look(kind.DESCRIPTOR, b"\x3a\x00" * (2 * MOST_FIELDS)).problem


@pytest.mark.parametrize("raw", [b"\xff" * 70_000, b"\x2a\xff\xff\xff\x7f" + bytes(70_000)])
def test_what_is_malformed_is_left_to_the_reader(raw: bytes) -> None:
    assert look(messages()["ModelInferRequest"].DESCRIPTOR, raw).problem == ""


@pytest.mark.parametrize(
    ("field", "values", "each"),
    [
        ("int64_contents", [1], NUMBER),
        ("int64_contents", [-1], NUMBER),
        ("uint_contents", [300], NUMBER),
        ("fp32_contents", [0.5], NUMBER),
        ("fp64_contents", [0.5], NUMBER),
        ("bool_contents", [True], NUMBER),
        ("bytes_contents", [b"ab"], 2 * 2 + 128),
    ],
)
def test_numbers_of_lists_weigh_what_becomes_of_them(
    field: str, values: list[object], each: int
) -> None:
    """A byte of a list became 8 in the message, 8 in a list, 28 in an object and 8 in an array."""
    kind, count = messages()["ModelInferRequest"], 1 << 15
    request = kind(model_name="m")
    getattr(request.inputs.add(name="x").contents, field).extend(values * count)
    weight = look(kind.DESCRIPTOR, request.SerializeToString()).weight
    assert each * count <= weight <= each * count + 5000


def test_raw_tensors_weigh_twice_their_bytes() -> None:
    kind = messages()["ModelInferRequest"]
    raw = kind(raw_input_contents=[bytes(1 << 20)]).SerializeToString()
    assert 2 << 20 <= look(kind.DESCRIPTOR, raw).weight <= (2 << 20) + 1000
