"""The Open Inference Protocol, version 2, over gRPC, on the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from edgeinfer.bounded import read_bounded
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.runtime.serve import facts, tensors, wire
from edgeinfer.runtime.serve.calls import CallPlans
from edgeinfer.runtime.serve.connections import files, network
from edgeinfer.runtime.serve.http import DisconnectedError, RequestError, in_time, status_of
from edgeinfer.runtime.serve.hub import LARGE_BYTES, Hub
from edgeinfer.runtime.serve.inflight import LIST_WEIGHT, Held
from edgeinfer.runtime.serve.keys import GRANT, Keys, sharer
from edgeinfer.runtime.serve.messages import HEALTH, SERVICE, messages
from edgeinfer.runtime.serve.options import MOST_KEYS
from edgeinfer.runtime.serve.requestlog import log_line
from edgeinfer.runtime.serve.rpc_requests import read
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tensors import InferRequest
from edgeinfer.runtime.serve.traces import Traces
from edgeinfer.runtime.serve.turns import Callers, OpenStream, OpenStreams, Turns
from edgeinfer.runtime.serve.v2 import change
from edgeinfer.types import Array

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

_log = logging.getLogger("edgeinfer.serve")

_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    422: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Codes of gRPC for a status of HTTP; others are INTERNAL."""

_OPEN = frozenset({"ServerLive", "ServerReady", "Check"})
"""What probes ask without a key."""

_WHOLE = ("", SERVICE)
"""What ``Check`` is asked for where it is no model."""

_STREAMS, _CALLS = 100, 1024
"""Calls of one connection, and of all, that are under way at once."""

_AHEAD = 64 << 10
"""Bytes that each of them may have sent."""

_PROBES, _PROBE_S = 4, 5.0
"""Messages of probes that are received at once, without a key, and seconds for each."""

_RESTED = RequestError(503, "others came, and this stream was silent", 1.0)

_FINAL = "triton_enable_empty_final_response"


class Rpc:
    """Answers over gRPC.

    Args:
        hub: the models.
        keys: that let requests in.

    Attributes:
        port: that it listens on, once started.
        problem: why it could not start.

    Raises:
        NotAvailableError: grpcio or protobuf is not installed.
    """

    def __init__(self, hub: Hub, keys: Keys) -> None:
        try:
            import grpc.aio

            self._messages = messages()
        except ImportError as e:
            raise NotAvailableError(f"gRPC needs grpcio and protobuf: {install('serve')}") from e
        self._grpc, self._hub, self._keys = grpc, hub, keys
        self._traces, self._plans = Traces(), CallPlans()
        limits = hub.options.limits
        # Nobody says how large a message is, and gRPC takes memory for it as it comes.
        most, what = max(1, limits.memory_bytes // limits.body_bytes), "messages are received"
        self._reading, self._probing = Turns(most, what), Callers(_PROBES)
        self._streams = OpenStreams(most, limits.body_s)
        self._server: Any = None
        self.port = 0
        self.problem: UsageError | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: the port is taken, or the certificate cannot be read.
        """
        options, grpc = self._hub.options, self._grpc
        limit = options.limits.body_bytes
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                # More is taken of a message once somebody receives it, and not before.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", _AHEAD),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.max_allowed_incoming_connections", files() // 4),
                ("grpc.server_handshake_timeout_ms", round(1000 * options.limits.head_s)),
            ],
            maximum_concurrent_rpcs=_CALLS,
        )
        generic = grpc.method_handlers_generic_handler
        server.add_generic_rpc_handlers(
            (generic(SERVICE, self._handlers()), generic(HEALTH, self._health()))
        )
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{options.grpc_port}"
        try:
            if options.certificate is None or options.private_key is None:
                self.port = server.add_insecure_port(address)
            else:
                paths = (options.private_key, options.certificate)
                key, certificate = (read_bounded(path, MOST_KEYS) for path in paths)
                credentials = grpc.ssl_server_credentials([(key, certificate)])
                self.port = server.add_secure_port(address, credentials)
        except (OSError, RuntimeError) as e:
            self.problem = UsageError(f"gRPC cannot listen on {address}: {e}")
            raise self.problem from e
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Take no more requests; those under way are answered first."""
        if self._server is not None:
            await self._server.stop(self._hub.options.limits.drain_s)
            self._server = None

    def _handlers(self) -> dict[str, Any]:
        plain: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": partial(self._change, "load"),
            "RepositoryModelUnload": partial(self._change, "unload"),
            "ModelInfer": self._infer_raw,
        }
        found = {name: self._unary(name, work) for name, work in plain.items()}
        found["ModelStreamInfer"] = self._grpc.stream_stream_rpc_method_handler(
            self._stream,
            response_serializer=_serialized,
        )
        return found

    def _health(self) -> dict[str, Any]:
        return {"Check": self._unary("Check", self._check, "HealthCheck")}

    def _unary(self, name: str, work: Callable[[Any], Awaitable[Any]], message: str = "") -> Any:
        kind = f"{message or name}Request"

        async def call(requests: AsyncIterator[bytes], context: ServicerContext[Any, Any]) -> Any:
            given = dict(context.invocation_metadata() or ())
            id, held = str(given.get("x-request-id", "")), Held(self._hub.memory)
            unsent = _Unsent(context, held)
            with self._traces.span(name, given.get("traceparent"), id) as note:
                try:
                    if name not in _OPEN:
                        self._let_in(given)
                        raw = await self._received(requests, held)
                    else:
                        raw = await self._probed(requests, context.peer())
                        await held.take(len(raw))
                    # Most of those are known, and need not be read.
                    request: Any = raw if name == "ModelInfer" else self._parsed(kind, raw)
                    if name == "Check" and request.service not in _WHOLE:
                        # Which models there are is told to who has a key.
                        self._let_in(given)
                    answer = await work(request)
                    unsent.is_large = await self._hold(held, answer, len(raw))
                except Exception as error:
                    known = self._known(name, error)
                    code = self._code(known)
                    note("rpc.grpc.status_code", code.value[0])
                    await context.abort(code, known.text)
                finally:
                    unsent.made()
                note("rpc.grpc.status_code", 0)
            log_line(f"{name} OK")
            return answer

        # On the wire it is a call with one message, which is received behind the key.
        return self._grpc.stream_unary_rpc_method_handler(
            call,
            response_serializer=_serialized,
        )

    async def _received(self, requests: AsyncIterator[bytes], held: Held) -> bytes:
        """Receive the message of a call, as many at once as there is memory for, and hold it.

        Raises:
            RequestError: others are received, it did not come in time, there is none, or no memory
                for it.
        """
        share = sharer()
        await self._reading.take(share)
        try:
            raw = await _next(requests, self._hub.options.limits.body_s)
            # It is there, so that whoever waits for memory waits here.
            await held.take(len(raw))
            return raw
        finally:
            self._reading.give(share)

    async def _probed(self, requests: AsyncIterator[bytes], peer: str) -> bytes:
        """Receive the message of a call that needs no key.

        Raises:
            RequestError: others came, it did not come in time, or there is none.
        """
        with self._probing.waiting(network(_address(peer))):
            return await _next(requests, _PROBE_S)

    def _let_in(self, given: Mapping[str, str | bytes]) -> None:
        key, other = (_bytes(given.get(name)) for name in ("authorization", "x-api-key"))
        self._keys.check(key, other)

    def _parsed(self, kind: str, raw: bytes) -> Any:
        """Read a message, behind the key: its parts may take many times its bytes.

        Raises:
            RequestError: it is none, or has too many parts.
        """
        if found := wire.problem(self._messages[kind].DESCRIPTOR, raw):
            raise RequestError(413, found)
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        try:
            return self._messages[kind].FromString(raw)
        except DecodeError as e:
            raise RequestError(400, f"no {kind}: {e}") from e

    def _known(self, name: str, error: Exception) -> RequestError:
        """Return what the client is reported; the log gets the rest."""
        if isinstance(error, DisconnectedError):
            return RequestError(499, "cancelled")
        known = status_of(error)
        if known.status >= 500 and not isinstance(error, RequestError):
            _log.error("%s failed", name, exc_info=error)
        _log.info("%s %s", name, self._code(known).name)
        return known

    def _code(self, error: RequestError) -> Any:
        return getattr(self._grpc.StatusCode, _CODES.get(error.status, "INTERNAL"))

    def _of(self, name: str, data: Mapping[str, Any]) -> Any:
        """Return a message of what HTTP answers as JSON; what only JSON has is left out."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        return json_format.ParseDict(data, self._messages[name](), ignore_unknown_fields=True)

    # Servers and models.

    async def _live(self, _: Any) -> Any:
        return self._messages["ServerLiveResponse"](live=True)

    async def _ready(self, _: Any) -> Any:
        return self._messages["ServerReadyResponse"](ready=self._hub.is_ready)

    async def _check(self, request: Any) -> Any:
        # 1 is SERVING, 2 is NOT_SERVING.
        name = request.service
        good = self._hub.is_ready if name in _WHOLE else facts.known(self._hub, name).is_ready
        return self._messages["HealthCheckResponse"](status=1 if good else 2)

    async def _model_ready(self, request: Any) -> Any:
        model = facts.known(self._hub, request.name, request.version)
        return self._messages["ModelReadyResponse"](ready=model.is_ready)

    async def _server_metadata(self, _: Any) -> Any:
        return self._of("ServerMetadataResponse", facts.server())

    async def _model_metadata(self, request: Any) -> Any:
        model = facts.known(self._hub, request.name, request.version)
        return self._of("ModelMetadataResponse", facts.metadata(model))

    async def _model_config(self, request: Any) -> Any:
        model = facts.known(self._hub, request.name, request.version)
        return self._of("ModelConfigResponse", {"config": facts.config(model)})

    async def _model_statistics(self, request: Any) -> Any:
        models = [*self._hub.visible.values()]
        if request.name:
            models = [facts.known(self._hub, request.name, request.version)]
        return self._of("ModelStatisticsResponse", facts.statistics(models))

    async def _repository_index(self, request: Any) -> Any:
        models = facts.index(self._hub, ready=request.ready)
        return self._of("RepositoryIndexResponse", {"models": models})

    async def _change(self, what: str, request: Any) -> Any:
        model = facts.known(self._hub, request.model_name)
        await change(self._hub, model, what, dict(request.parameters))
        return self._messages[f"RepositoryModel{what.title()}Response"]()

    # Runs.

    async def _infer_raw(self, raw: bytes) -> Any:
        """Run a model once, as a message says that may be known; the answer is known likewise."""
        found = self._plans.read(self._hub, raw)
        if found is None:
            return await self._infer(self._parsed("ModelInferRequest", raw), raw)
        model, asked = found
        with self._hub.counted(model):
            results = await self._hub.infer(model, asked)
            return self._plans.write(model, asked, results, self._written)

    async def _infer(self, request: Any, raw: bytes = b"") -> Any:
        """Run a model once.

        Args:
            request: what is asked.
            raw: the message, where it may be kept.
        """
        held, model = Held(self._hub.memory), self._model(request)
        try:
            if not request.raw_input_contents:
                await held.take(request.ByteSize() * LIST_WEIGHT)
            asked = await self._read(model, request)
            # Who answers for another now may not next time.
            if raw and request.raw_input_contents and model.name == request.model_name:
                self._plans.keep(raw, model, asked)
            return await self._ran(model, asked)
        finally:
            held.release()

    async def _stream(
        self, requests: AsyncIterator[bytes], context: ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """Answer requests in the order they came; they run together."""
        running: asyncio.Queue[asyncio.Task[Any] | RequestError | None]
        running = asyncio.Queue(self._hub.options.limits.queue)
        try:
            self._let_in(dict(context.invocation_metadata() or ()))
            place = self._streams.take(sharer(), partial(running.put_nowait, _RESTED))
        except RequestError as error:
            await context.abort(self._code(error), error.text)
        taking = asyncio.ensure_future(self._take(requests, running, place))
        try:
            while (task := await running.get()) is not None:
                if isinstance(task, RequestError):
                    await context.abort(self._code(task), task.text)
                    return
                answer, kept = await task
                place.answers()
                try:
                    yield answer
                finally:
                    kept.release()
        finally:
            self._streams.give(place)
            taking.cancel()
            while not running.empty():
                if isinstance(left := running.get_nowait(), asyncio.Task):
                    left.add_done_callback(_released)
                    left.cancel()

    async def _hold(self, held: Held, answer: Any, own: int) -> bool:
        """Hold a large answer, until it is taken, in the place of what was asked.

        Returns:
            Whether it is large.

        Raises:
            RequestError: there is no memory for it.
        """
        # What is known is bytes already.
        size = len(answer) if isinstance(answer, bytes) else answer.ByteSize()
        is_large = size >= LARGE_BYTES
        if is_large:
            await held.take(max(0, size - own))
        return is_large

    async def _take(
        self, requests: AsyncIterator[bytes], running: asyncio.Queue[Any], place: OpenStream
    ) -> None:
        """Begin what a stream asks for."""
        try:
            raw: bytes | None = await _next(requests, self._hub.options.limits.body_s)
        except RequestError as error:
            # One that ends at once is no fault.
            await running.put(None if error.status == 400 else error)
            return
        while raw is not None:
            place.asks()
            held = Held(self._hub.memory)
            problem: RequestError | None = None
            try:
                await held.take(len(raw))
            except RequestError as error:
                # Of what has no memory nothing is kept.
                problem, raw = error, b""
            # Steps of a sequence start in their order: each is read before the next.
            read: Awaitable[Any] = self._streamed(raw, held, problem)
            await running.put(asyncio.ensure_future(read))
            raw = await anext(requests, None)
        await running.put(None)

    async def _streamed(
        self, raw: bytes, held: Held, problem: RequestError | None
    ) -> tuple[Any, Held]:
        """Return the answer to one request of a stream, and its memory; an error ends it alone.

        Args:
            raw: the message; empty where it has no memory.
            held: its memory.
            problem: why there is none.
        """
        response = self._messages["ModelStreamInferResponse"]()
        request = self._messages["ModelInferRequest"]()
        try:
            _count(problem)
            request = self._parsed("ModelInferRequest", raw)
            final = request.parameters.pop(_FINAL).bool_param if _FINAL in request.parameters else 0
            answer = await self._infer(request)
            if final:
                answer.parameters["triton_final_response"].bool_param = True
            await self._hold(held, answer, len(raw))
            response.infer_response.CopyFrom(answer)
        except asyncio.CancelledError:
            held.release()
            raise
        except Exception as error:
            held.release()
            response.error_message = self._known("ModelStreamInfer", error).text
            response.infer_response.id = request.id
            response.infer_response.model_name = request.model_name
        return response, held

    def _model(self, request: Any) -> Served:
        facts.check_version(request.model_name, request.model_version)
        return self._hub.of_kind(request.model_name, "tensors")

    async def _read(self, model: Served, request: Any) -> InferRequest:
        limit = self._hub.options.limits.elements
        work = partial(read, request, model.inputs, model.outputs, limit)
        # What is raw is not copied; lists of values are.
        size = 0 if request.raw_input_contents else request.ByteSize()
        return await self._hub.read(size, work)

    async def _ran(self, model: Served, asked: InferRequest) -> Any:
        with self._hub.counted(model):
            results = await self._hub.infer(model, asked)
            return self._written(model, asked, results)

    def _written(self, model: Served, asked: InferRequest, results: Mapping[str, Array]) -> Any:
        answer = self._messages["ModelInferResponse"](
            model_name=model.name, model_version="1", id=asked.id
        )
        for spec in model.outputs:
            array = tensors.chosen(asked, results, spec.name)
            if array is not None:
                answer.outputs.add(
                    name=spec.name, datatype=tensors.datatype(spec), shape=array.shape
                )
                answer.raw_output_contents.append(tensors.to_bytes(array))
        return answer


async def _next(requests: AsyncIterator[bytes], seconds: float) -> bytes:
    """Return the next message.

    Raises:
        RequestError: it did not come in time, or there is none.
    """
    late = RequestError(408, f"the message did not come within {seconds:g} s")
    try:
        return await in_time(anext(requests), seconds, late)
    except StopAsyncIteration as e:
        raise RequestError(400, "the call has no message") from e


class _Unsent:
    """The memory of a call, given back when its answer was taken; a small one's when it is made.

    Args:
        context: Context of the call.
        held: its memory.

    Attributes:
        is_large: the answer is.
    """

    def __init__(self, context: ServicerContext[Any, Any], held: Held) -> None:
        self._held, self.is_large, self._is_over = held, False, False
        context.add_done_callback(self._over)

    def made(self) -> None:
        """Hand the answer to gRPC, or an error in its place."""
        if self._is_over or not self.is_large:
            self._held.release()

    def _over(self, _: Any) -> None:
        self._is_over = True
        self._held.release()


def _released(task: asyncio.Task[tuple[Any, Held]]) -> None:
    """Give back the memory of an answer that nobody takes any more."""
    if not task.cancelled() and task.exception() is None:
        task.result()[1].release()


def _address(peer: str) -> str:
    """Return the address of who calls, as gRPC says it: ``ipv4:1.2.3.4:5``, ``ipv6:[::1]:5``."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def _count(problem: RequestError | None) -> None:
    if problem is not None:
        raise problem
    if (grant := GRANT.get()) is not None:
        grant.count_request()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _serialized(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
