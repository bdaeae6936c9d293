"""What messages of gRPC with raw tensors say besides them, kept: it is the same each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.plans import MOST, MOST_BYTES, Plans, asked_again
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tensors import InferRequest, chosen, shared_output, to_buffer
from edgeinfer.types import Array
from edgeinfer.wire import read_varint, varint

_RAW_INPUT = 7 << 3 | 2
_RAW_OUTPUT = bytes([6 << 3 | 2])
"""Tags of the raw tensors of ``ModelInferRequest`` and ``ModelInferResponse``."""


class CallPlan:
    """Reads messages whose fields besides the tensors were read before.

    Args:
        model: that is asked.
        raw: the message.
        spans: where the raw tensors are in it.
        request: what it says.

    Attributes:
        name: Name of the model.
        plans: Plans of the model as it was loaded then.
    """

    __slots__ = ("_parts", "_request", "_rest", "name", "plans")

    def __init__(
        self, model: Served, raw: bytes, spans: Sequence[tuple[int, int]], request: InferRequest
    ) -> None:
        self.name, self.plans = model.name, model.plans
        # Not its feeds, which hold the message that they came in.
        self._request = InferRequest("", {}, request.outputs, request.binary, request.terms)
        ends = [0, *(end for _, end in spans)]
        starts = [*(start for start, _ in spans), len(raw)]
        self._rest = [
            (end, raw[end:start]) for end, start in zip(ends, starts, strict=True) if start > end
        ]
        self._parts = [
            (name, array.dtype, start, array.shape)
            for (name, array), (start, _) in zip(request.feeds.items(), spans, strict=True)
        ]

    def read(self, raw: bytes) -> InferRequest | None:
        """Return a request of as many bytes; None where it says something else."""
        # Of each call, and a generator takes three times as long.
        for start, part in self._rest:
            if not raw.startswith(part, start):
                return None
        return asked_again(self._request, raw, self._parts)


class CallPlans:
    """The messages of a server, the latest of each length."""

    def __init__(self) -> None:
        self._known: dict[int, CallPlan] = {}
        self._heads: dict[object, tuple[Plans, bytes]] = {}

    def read(self, hub: Hub, raw: bytes) -> tuple[Served, InferRequest] | None:
        """Return which model a message asks, and what; None where it has to be read.

        Raises:
            RequestError: the model takes no requests, or this key may not use it.
        """
        plan = self._known.get(len(raw))
        if plan is None or (asked := plan.read(raw)) is None:
            return None
        # A fallback that answers is counted once, by who reads the message.
        model = hub.models[plan.name]
        if model.plans is not plan.plans or model.other is not None:
            return None
        found = hub.of_kind(plan.name, "tensors")
        return (found, asked) if found is model else None

    def keep(self, raw: bytes, model: Served, request: InferRequest) -> None:
        """Keep what was read, where others may send the same.

        Args:
            raw: the message.
            model: that it names; nothing is kept of what a fallback answers.
            request: what it says.
        """
        is_own = bool(request.id) or request.shared is not None
        if not model.plans.is_raw or is_own or request.terms.sequence is not None:
            return
        spans = _raw_inputs(raw)
        size = sum(end - start for start, end in spans)
        if len(spans) != len(request.feeds) or len(raw) - size > MOST_BYTES:
            return
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[len(raw)] = CallPlan(model, raw, spans, request)

    def write(
        self, model: Served, request: InferRequest, results: Mapping[str, Array], written: Any
    ) -> list[bytes | memoryview]:
        """Return the parts of an answer as it is sent, all but its tensors written once.

        Its id is not among them.

        Args:
            model: that was asked.
            request: what was asked.
            results: Outputs of the run.
            written: makes the message.
        """
        # Of each answer, and a comprehension is a call.
        arrays, like = dict[str, Array](), list[object]()
        for spec in model.outputs:
            if (array := chosen(request, results, spec.name)) is not None:
                arrays[spec.name] = array
                like += (spec.name, array.shape)
        key = model.name, tuple(like)
        plans, head = self._heads.get(key, (None, b""))
        if plans is not model.plans:
            head = written(model, request, results).SerializeToString()
            if len(self._heads) >= MOST:
                self._heads.clear()
            self._heads[key] = model.plans, head
        parts: list[bytes | memoryview] = [head]
        for name, array in arrays.items():
            data = b"" if shared_output(request, name) is not None else to_buffer(array)
            parts += (_RAW_OUTPUT, varint(len(data)), data)
        return parts


def _raw_inputs(raw: bytes) -> list[tuple[int, int]]:
    """Return where the raw tensors of a message are that protobuf has read."""
    found, at = [], 0
    while at < len(raw):
        tag, at = read_varint(raw, at)
        size, after = read_varint(raw, at)
        # A request has no other fields than texts and messages.
        if tag is None or size is None or tag & 7 != 2:
            return []
        if tag == _RAW_INPUT:
            found.append((after, after + size))
        at = after + size
    return found
