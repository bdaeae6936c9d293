"""Messages with too many parts are refused before they are read."""

import time

import pytest

from edgeinfer.runtime.serve.wire import MOST_FIELDS, MOST_MESSAGES, problem

pytest.importorskip("google.protobuf")

from edgeinfer.runtime.serve.messages import messages


def test_what_clients_send_passes() -> None:
    kind = messages()["ModelInferRequest"]
    request = kind(model_name="m", id="1")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 1 << 16])
    tensor.contents.fp32_contents.extend([1.5] * (1 << 16))
    request.raw_input_contents.append(bytes(1 << 20))
    request.parameters["priority"].int64_param = 3
    assert problem(kind.DESCRIPTOR, request.SerializeToString()) == ""


@pytest.mark.parametrize("part", [b"\x2a\x00", b"\x2a\x02\x22\x00", b"\x22\x00"])
def test_many_empty_messages_do_not(part: bytes) -> None:
    """64 MB of them took 2.7 GB."""
    kind = messages()["ModelInferRequest"]
    raw = part * (4 * MOST_MESSAGES)
    start = time.process_time()
    assert "tensors and parameters" in problem(kind.DESCRIPTOR, raw)
    assert time.process_time() - start < 5


def test_neither_do_many_small_fields() -> None:
    kind = messages()["ModelInferRequest"]
    assert "send tensors raw" in problem(kind.DESCRIPTOR, b"\x3a\x00" * (2 * MOST_FIELDS))


@pytest.mark.parametrize("raw", [b"\xff" * 70_000, b"\x2a\xff\xff\xff\x7f" + bytes(70_000)])
def test_what_is_malformed_is_left_to_the_reader(raw: bytes) -> None:
    assert problem(messages()["ModelInferRequest"].DESCRIPTOR, raw) == ""
