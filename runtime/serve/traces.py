"""One span a request for OpenTelemetry, where the application around the server set it up."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

Note = Callable[[str, Any], None]
"""Adds an attribute to the span."""


def _nothing(name: str, value: Any) -> None:
    pass


_NO_SPAN = contextlib.nullcontext[Note](_nothing)


class Traces:
    """Begins spans; does nothing where no tracer is set up.

    ``opentelemetry-instrument edgeinfer serve`` sets an exporter up from its own variables.
    """

    def __init__(self) -> None:
        self._tracer: Any = None
        # Whoever sets a tracer up has imported it; it takes megabytes.
        if "opentelemetry.trace" not in sys.modules:
            return
        from opentelemetry import propagate, trace

        provider = trace.get_tracer_provider()
        if not isinstance(provider, trace.ProxyTracerProvider):
            self._tracer = provider.get_tracer("edgeinfer.serve")
        self._propagate, self._trace = propagate, trace

    @property
    def is_on(self) -> bool:
        """Whether anybody reads spans."""
        return self._tracer is not None

    def span(
        self, name: str, parent: str | None, request: str
    ) -> contextlib.AbstractContextManager[Note]:
        """Enclose one request.

        Args:
            name: Name of the span.
            parent: header ``traceparent`` of the client.
            request: id of the request.
        """
        return _NO_SPAN if self._tracer is None else self._span(name, parent, request)

    @contextlib.contextmanager
    def _span(self, name: str, parent: str | None, request: str) -> Iterator[Note]:
        context = self._propagate.extract({} if parent is None else {"traceparent": parent})
        kind = self._trace.SpanKind.SERVER
        with self._tracer.start_as_current_span(name, context=context, kind=kind) as span:
            if not span.is_recording():
                yield _nothing
                return
            span.set_attribute("edgeinfer.request_id", request)
            yield span.set_attribute
