"""The Open Inference Protocol, version 2, over gRPC, on the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.bounded import read_bounded
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.printable import as_line
from edgeinfer.runtime.batches import size_of
from edgeinfer.runtime.serve import facts, tensors, wire
from edgeinfer.runtime.serve.callers import CallConnections, CallPlaces
from edgeinfer.runtime.serve.calls import CallPlans
from edgeinfer.runtime.serve.connections import files, network
from edgeinfer.runtime.serve.http import DisconnectedError, RequestError, in_time, status_of
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import LIST_WEIGHT, Held, held, hold, use
from edgeinfer.runtime.serve.keys import GRANT, Keys, sharer
from edgeinfer.runtime.serve.messages import HEALTH, SERVICE, messages
from edgeinfer.runtime.serve.options import MOST_KEYS
from edgeinfer.runtime.serve.requestlog import log_line
from edgeinfer.runtime.serve.rpc_facts import WHOLE, RpcFacts
from edgeinfer.runtime.serve.rpc_requests import read
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tensors import InferRequest
from edgeinfer.runtime.serve.traces import Traces
from edgeinfer.runtime.serve.turns import (
    Callers,
    OpenStream,
    OpenStreams,
    StreamStep,
    StreamSteps,
    Turns,
)
from edgeinfer.runtime.serve.unread import UnreadCall, UnreadCalls, end_connections, place_of
from edgeinfer.types import Array
from edgeinfer.wire import varint

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

_STREAMS, _CALLS = 100, 1024
"""Calls of one connection, and of all, that are under way at once."""

_ASKING, _ALL = 256, 4 * _CALLS
"""Those of probes, and of all with those that are being refused."""

_RESTS_MS = 60_000
"""After so long without a call a connection is ended; who calls again opens another by itself."""

_AHEAD = 64 << 10
"""Bytes that each of them may have sent."""

_PROBES, _PROBE_S = 4, 5.0
"""Messages of probes that are received at once, without a key, and seconds for each."""

_PROBE, _NAMES = 1 << 10, 64 << 10
"""Bytes of a message of a probe, and of others that hold names and no tensors."""

_RESTED = RequestError(503, "others came, and this stream was silent", 1.0)

_FINAL = "triton_enable_empty_final_response"

_INFER_RESPONSE = bytes([2 << 3 | 2])
"""Tag of ``infer_response`` of ``ModelStreamInferResponse``."""

_BUSY = "calls are under way"

_COPIES = 2
"""Of an answer until it is read: Python's bytes, and gRPC's own."""


Read = Callable[[], Awaitable[Any]]
"""Returns the next message of a call, or none at its end; gRPC's iterator keeps the last one."""


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
        self._facts = RpcFacts(hub, self._messages)
        limits = hub.options.limits
        # Nobody says how large a message is, and gRPC takes memory for it as it comes.
        most, what = max(1, limits.memory_bytes // limits.body_bytes), "messages are received"
        self._reading, self._probing = Turns(most, what), Callers(_PROBES)
        self._streams = OpenStreams(most, limits.body_s)
        self._unread = UnreadCalls(limits.body_s, lambda peers: end_connections(self.port, peers))
        self._calls, self._asking = (
            CallPlaces(_CALLS, _BUSY),
            CallPlaces(_ASKING, f"probes' {_BUSY}"),
        )
        self._most = files() // 4
        self._connections = CallConnections(self._most)
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
                ("grpc.max_allowed_incoming_connections", self._most),
                ("grpc.max_connection_idle_ms", _RESTS_MS),
                ("grpc.server_handshake_timeout_ms", round(1000 * options.limits.head_s)),
            ],
            maximum_concurrent_rpcs=_ALL,
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
        self._connections.start(self.port)

    async def stop(self) -> None:
        """Take no more requests; those under way are answered first."""
        self._connections.stop()
        if self._server is not None:
            await self._server.stop(self._hub.options.limits.drain_s)
            self._server = None

    def _handlers(self) -> dict[str, Any]:
        plain = {**self._facts.calls(), "ModelInfer": self._infer_raw}
        found = {name: self._unary(name, work) for name, work in plain.items()}
        for name in (f"CudaSharedMemory{what}" for what in ("Status", "Register", "Unregister")):
            found[name] = self._unary(name, _no_cuda, "ServerLive")
        found["ModelStreamInfer"] = self._grpc.stream_stream_rpc_method_handler(self._stream)
        return found

    def _health(self) -> dict[str, Any]:
        return {"Check": self._unary("Check", self._facts.check, "HealthCheck")}

    def _unary(self, name: str, work: Callable[[Any], Awaitable[Any]], message: str = "") -> Any:
        kind = f"{message or name}Request"

        async def answered(
            given: Mapping[str, str | bytes], held: Held, context: ServicerContext[Any, Any]
        ) -> bytes:
            if name not in _OPEN:
                self._let_in(given)
                _take(self._calls, sharer(), context)
                raw = await self._received(context.read, held)
            else:
                whose = network(place_of(context.peer())[0])
                _take(self._asking, whose.encode(), context)
                raw = await self._probed(context.read, whose)
                await held.take(len(raw))
            most = _PROBE if name in _OPEN else _NAMES
            if name != "ModelInfer" and len(raw) > most:
                raise RequestError(413, f"a message of {len(raw)} bytes, more than {most}")
            # Most of those are known, and need not be read.
            request: Any = [raw] if name == "ModelInfer" else await self._parsed(kind, raw)
            raw = b""
            if name == "Check" and request.service not in WHOLE:
                # The names of models are for clients with a key.
                self._let_in(given)
            return _serialized(await work(request))

        async def call(_: Any, context: ServicerContext[Any, Any]) -> Any:
            given = dict(context.invocation_metadata() or ())
            id, held = str(given.get("x-request-id", "")), hold(self._hub.memory, _COPIES)
            self._note(context)
            unread = UnreadCall(context, held, self._unread)
            answer, code, text = b"", None, ""
            with self._traces.span(name, given.get("traceparent"), id) as note:
                try:
                    answer = await answered(given, held, context)
                    unread.made(len(answer), _PROBE_S if name in _OPEN else math.inf)
                except Exception as error:
                    code, text = self._told(name, error)
                    unread.made(0, _PROBE_S)
                note("rpc.grpc.status_code", 0 if code is None else code.value[0])
            if code is not None:
                # Behind the error, which holds all that was read.
                answer = b""
                await context.abort(code, text)
            log_line(f"{name} OK")
            return answer

        # On the wire it is a call with one message, which is received behind the key.
        return self._grpc.stream_unary_rpc_method_handler(call)

    def _note(self, context: ServicerContext[Any, Any]) -> None:
        """Note that a call is under way, until it ends."""
        peer = context.peer()
        if self._hub.regions is not None:
            from edgeinfer.runtime.serve.regions import CONNECTION, Connection

            is_over = context.done
            CONNECTION.set(Connection(place_of(peer), None, self.port, is_over))
        self._connections.asks(peer)
        context.add_done_callback(lambda _: self._connections.rests(peer))

    async def _received(self, read: Read, held: Held) -> bytes:
        """Receive the message of a call, as many at once as there is memory for, and hold it.

        Raises:
            RequestError: others are received, it did not come in time, there is none, or no memory
                for it.
        """
        share = sharer()
        await self._reading.take(share)
        try:
            raw = await _next(read, self._hub.options.limits.body_s)
            # It is there, so that whoever waits for memory waits here.
            await held.take(len(raw))
            return raw
        finally:
            self._reading.give(share)

    async def _probed(self, read: Read, whose: str) -> bytes:
        """Receive the message of a call that needs no key.

        Raises:
            RequestError: others came, it did not come in time, or there is none.
        """
        with self._probing.waiting(whose):
            return await _next(read, _PROBE_S)

    def _let_in(self, given: Mapping[str, str | bytes]) -> None:
        self._keys.check(_bytes(given.get("authorization")), _bytes(given.get("x-api-key")))

    async def _parsed(self, kind: str, raw: bytes) -> Any:
        """Read a message, behind the key: its parts may take many times its bytes, and are held.

        Raises:
            RequestError: it is none, has too many parts or values in lists, or there is no memory.
        """
        made, limits = self._messages[kind], self._hub.options.limits
        found = await self._hub.read(len(raw), partial(wire.look, made.DESCRIPTOR, raw))
        if found.problem:
            raise RequestError(413, found.problem)
        for what, size, most in (
            ("are", len(raw) - found.raw, limits.json_bytes),
            ("become", found.weight - wire.RAW * found.raw, limits.memory_bytes),
        ):
            if size > most:
                text = f"values in lists {what} {size} bytes, more than {most}; send tensors raw"
                raise RequestError(413, text)
        await held().take_data(found.weight)
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        try:
            return await self._hub.read(len(raw), partial(made.FromString, raw))
        except DecodeError as e:
            raise RequestError(400, f"no {kind}: {e}") from e

    def _told(self, name: str, error: Exception) -> tuple[Any, str]:
        """Return what the client is sent, a code and a text; the log gets the rest."""
        if isinstance(error, DisconnectedError):
            return self._grpc.StatusCode.CANCELLED, "cancelled"
        known = status_of(error)
        if known.status >= 500 and not isinstance(error, RequestError):
            _log.error("%s failed", as_line(name), exc_info=error)
        code = self._code(known)
        log_line(f"{name} {code.name}")
        return code, known.text

    def _code(self, error: RequestError) -> Any:
        return getattr(self._grpc.StatusCode, _CODES.get(error.status, "INTERNAL"))

    # Runs.

    async def _infer_raw(self, message: list[bytes]) -> bytes:
        """Run a model once, as a message says that may be known; the answer is known likewise.

        Args:
            message: it alone, which is taken from it.
        """
        raw = message.pop()
        found = self._plans.read(self._hub, raw)
        if found is None:
            request = await self._parsed("ModelInferRequest", raw)
            model, asked = await self._asked(request)
            # Who answers for another now may not next time.
            if request.raw_input_contents and model.name == request.model_name:
                self._plans.keep(raw, model, asked)
            # While it runs there is what it runs with, and not the message as well.
            del request, raw
        else:
            model, asked = found
        return b"".join(await self._ran(model, asked, is_alone=self._calls.is_single))

    async def _asked(self, request: Any) -> tuple[Served, InferRequest]:
        """Return which model a message asks, and what."""
        model = self._model(request)
        limit = self._hub.options.limits.elements
        is_shared = self._hub.regions is not None
        work = partial(read, request, model.inputs, model.outputs, limit, is_shared=is_shared)
        is_raw, size = bool(request.raw_input_contents), request.ByteSize()
        if model.plans.has_texts:
            # There are texts, of which each becomes an object.
            await held().take_data(size * LIST_WEIGHT)
            is_raw = False
        asked = await self._hub.read(0 if is_raw else size, work)
        # Raw tensors are what was received.
        held().drop_data(0 if is_raw else size_of(asked.feeds))
        return model, asked

    async def _stream(self, _: Any, context: ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        """Answer requests in the order they came; they run together."""
        running: asyncio.Queue[asyncio.Task[Any] | RequestError | None]
        running = asyncio.Queue(self._hub.options.limits.queue)
        self._note(context)
        try:
            self._let_in(dict(context.invocation_metadata() or ()))
            _take(self._calls, sharer(), context)
            place = self._streams.take(sharer(), partial(running.put_nowait, _RESTED))
        except RequestError as error:
            await context.abort(self._code(error), error.text)
        taking = asyncio.ensure_future(self._take(context.read, running, place))
        try:
            while (task := await running.get()) is not None:
                if isinstance(task, RequestError):
                    await context.abort(self._code(task), task.text)
                    return
                answer, kept = await task
                place.answers()
                del task
                unread = self._unread.begin(len(answer), context.peer)
                try:
                    yield answer
                finally:
                    self._unread.end(unread)
                    kept.release()
        finally:
            self._streams.give(place)
            taking.cancel()
            while not running.empty():
                if isinstance(left := running.get_nowait(), asyncio.Task):
                    left.add_done_callback(_released)
                    left.cancel()

    async def _take(self, read: Read, running: asyncio.Queue[Any], place: OpenStream) -> None:
        """Begin what a stream asks for."""
        try:
            raw = await _next(read, self._hub.options.limits.body_s)
        except RequestError as error:
            # One that ends at once is no fault.
            await running.put(None if error.status == 400 else error)
            return
        steps = StreamSteps()
        while isinstance(raw, bytes):
            place.asks()
            held = Held(self._hub.memory, copies=_COPIES)
            problem: RequestError | None = None
            try:
                await held.take(len(raw))
            except RequestError as error:
                # Of what has no memory nothing is kept.
                problem, raw = error, b""
            answered = asyncio.ensure_future(self._streamed([raw], held, problem, steps.next()))
            raw = b""
            await running.put(answered)
            del answered
            raw = await read()
        await running.put(None)

    async def _streamed(
        self, raw: list[bytes], held: Held, problem: RequestError | None, step: StreamStep
    ) -> tuple[bytes, Held]:
        """Return the answer to one request of a stream, and its memory; an error ends it alone.

        Args:
            raw: the message, which is taken from it; empty where it has no memory.
            held: its memory.
            problem: why there is none.
            step: Place among the requests of the stream.
        """
        use(held)
        begun = self._messages["ModelInferResponse"]()
        try:
            _count(problem)
            request = await self._parsed("ModelInferRequest", raw.pop())
            begun.id, begun.model_name = request.id, request.model_name
            final = request.parameters.pop(_FINAL).bool_param if _FINAL in request.parameters else 0
            model, asked = await self._asked(request)
            # While it runs there is what it runs with, and not the message as well.
            del request
            if final:
                begun.parameters["triton_final_response"].bool_param = True
            # Of what a message says twice the last counts; another model may have answered.
            begun.ClearField("model_name")
            await step.begin(asked.terms.sequence)
            parts = [*await self._ran(model, asked), begun.SerializeToString()]
            size = sum(map(len, parts))
            held.made(size)
            answer = b"".join((_INFER_RESPONSE, varint(size), *parts))
            held.keep_answer()
        except asyncio.CancelledError:
            held.release()
            raise
        except Exception as error:
            held.release()
            _code, text = self._told("ModelStreamInfer", error)
            response = self._messages["ModelStreamInferResponse"](error_message=text)
            response.infer_response.CopyFrom(begun)
            answer = response.SerializeToString()
        finally:
            step.end()
        return answer, held

    def _model(self, request: Any) -> Served:
        facts.check_version(request.model_name, request.model_version)
        return self._hub.of_kind(request.model_name, "tensors")

    async def _ran(
        self, model: Served, asked: InferRequest, *, is_alone: bool = False
    ) -> list[Any]:
        """Run a model once; return the parts of the answer.

        Args:
            model: that is asked.
            asked: what is asked.
            is_alone: whether no other call is under way.
        """
        with self._hub.counted(model):
            results = self._hub.infer_now(model, asked) if is_alone else None
            if results is None:
                results = await self._hub.infer(model, asked)
            parts = self._plans.write(model, asked, results, self._written)
        if asked.id:
            parts.append(self._messages["ModelInferResponse"](id=asked.id).SerializeToString())
        return parts

    def _written(self, model: Served, asked: InferRequest, results: Mapping[str, Array]) -> Any:
        """Return an answer without what it has of its own: its id and the tensors' bytes."""
        answer = self._messages["ModelInferResponse"](model_name=model.name, model_version="1")
        for spec in model.outputs:
            array = tensors.chosen(asked, results, spec.name)
            if array is not None:
                answer.outputs.add(
                    name=spec.name, datatype=tensors.datatype(spec), shape=array.shape
                )
        return answer


def _take(slots: CallPlaces, share: bytes, context: ServicerContext[Any, Any]) -> None:
    """Take a place until a call ends.

    Raises:
        RequestError: none is free.
    """
    slots.take(share)
    context.add_done_callback(lambda _: slots.give(share))


async def _next(read: Read, seconds: float) -> bytes:
    """Return the next message.

    Raises:
        RequestError: it did not come in time, or there is none.
    """
    late = RequestError(408, f"the message did not come within {seconds:g} s")
    raw = await in_time(read(), seconds, late)
    if not isinstance(raw, bytes):
        raise RequestError(400, "the call has no message")
    return raw


def _released(task: asyncio.Task[tuple[bytes, Held]]) -> None:
    """Give back the memory of an answer that nobody takes any more."""
    if not task.cancelled() and task.exception() is None:
        task.result()[1].release()


async def _no_cuda(_: Any) -> Any:
    raise RequestError(501, facts.NO_CUDA)


def _count(problem: RequestError | None) -> None:
    if problem is not None:
        raise problem
    if (grant := GRANT.get()) is not None:
        grant.count_request()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _serialized(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
