"""What the JSON of requests and answers with raw tensors says, kept: it is the same each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.runtime.serve.tensors import InferRequest, chosen, to_buffer, write
from edgeinfer.types import Array, TensorSpec

MOST, MOST_BYTES = 64, 1024
"""JSON texts of a model that are kept, and bytes of each."""


def asked_again(
    asked: InferRequest,
    raw: bytes | memoryview,
    parts: Iterable[tuple[str, Any, int, tuple[int, ...]]],
) -> InferRequest:
    """Return a request like one before, with the tensors that other bytes hold.

    Args:
        asked: the request before.
        raw: the bytes.
        parts: name, element type, first byte and shape of each tensor.
    """
    feeds = {name: np.ndarray(shape, dtype, raw, start) for name, dtype, start, shape in parts}
    return InferRequest("", feeds, asked.outputs, asked.binary, asked.terms)


class RequestPlan:
    """Reads requests whose JSON was read before.

    Args:
        request: that was read.
        length: Length of its body.
        start: Start of the raw tensors in it.

    Attributes:
        length: Length of the body.
        parts: name, element type, first byte and shape of each tensor.
        request: Request without its tensors.
        stack: takes requests of it that come together; None for none.
    """

    __slots__ = ("length", "parts", "request", "stack")

    def __init__(self, request: InferRequest, length: int, start: int) -> None:
        # Not its feeds, which hold the body that they came in.
        self.request = InferRequest("", {}, request.outputs, request.binary, request.terms)
        self.length = length
        self.parts: list[tuple[str, Any, int, tuple[int, ...]]] = []
        for name, array in request.feeds.items():
            self.parts.append((name, array.dtype, start, array.shape))
            start += array.nbytes
        self.stack: Any = None

    def read(self, body: bytes | memoryview) -> InferRequest | None:
        """Return a request; None where there are fewer or more bytes than the JSON says."""
        if len(body) != self.length:
            return None
        return asked_again(self.request, body, self.parts)


class Plans:
    """The JSON texts of a model's requests.

    Args:
        inputs: Inputs of the model.

    Attributes:
        has_texts: whether objects are made of raw tensors, many times their bytes.
    """

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        self.has_texts = any(spec.dtype == "string" for spec in inputs)
        # Texts have lengths of their own, and of truth values each is looked at.
        self._is_on = not any(spec.dtype in ("string", "bool") for spec in inputs)
        self._known: dict[bytes, RequestPlan] = {}
        self._heads: dict[object, tuple[bytes, tuple[str, ...]]] = {}

    @property
    def is_raw(self) -> bool:
        """Whether raw tensors are taken as they lie."""
        return self._is_on

    def read(self, head: bytes, body: bytes | memoryview) -> InferRequest | None:
        """Return a request whose JSON is known; None where it has to be read."""
        plan = self._known.get(head)
        return None if plan is None else plan.read(body)

    def plan(self, head: bytes) -> RequestPlan | None:
        """Return what reads requests of a JSON text; None where it is not known."""
        return self._known.get(head)

    def keep(self, head: bytes, body: bytes | memoryview, request: InferRequest) -> None:
        """Keep what was read, where others may send the same."""
        if not self._is_on or len(head) > MOST_BYTES:
            return
        if request.id or request.shared is not None or request.terms.sequence is not None:
            return
        size = sum(array.nbytes for array in request.feeds.values())
        # Else some of its tensors are in the JSON.
        if size and len(head) + size == len(body):
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[head] = RequestPlan(request, len(body), len(head))

    def write(
        self,
        model: str,
        request: InferRequest,
        results: Mapping[str, Array],
        specs: Sequence[TensorSpec],
    ) -> tuple[bytes, int | None]:
        """Return the body of an answer as ``tensors.write`` does, its JSON written once."""
        if request.id or request.shared is not None or not request.binary:
            return write(model, request, results, specs)
        # A generator would be a call for each tensor of each answer.
        key: list[object] = [request.outputs, request.binary]
        for name, array in results.items():
            key += (name, array.shape, array.nbytes)
        known = self._heads.get(tuple(key))
        if known is not None:
            head, names = known
            return b"".join([head, *[to_buffer(results[name]) for name in names]]), len(head)
        body, size = write(model, request, results, specs)
        names = tuple(s.name for s in specs if chosen(request, results, s.name) is not None)
        # Texts have lengths of their own.
        is_raw = all(n in request.binary and results[n].dtype.kind not in "OSU" for n in names)
        if size is not None and is_raw:
            if len(self._heads) >= MOST:
                self._heads.clear()
            self._heads[tuple(key)] = body[:size], names
        return body, size
