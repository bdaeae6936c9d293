"""The Open Inference Protocol, version 2, over gRPC, on the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.bounded import read_bounded
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.runtime.serve import facts, tensors, wire
from edgeinfer.runtime.serve.calls import CallPlans
from edgeinfer.runtime.serve.connections import files
from edgeinfer.runtime.serve.http import DisconnectedError, RequestError, in_time, status_of
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import LIST_WEIGHT, Held
from edgeinfer.runtime.serve.keys import GRANT, Keys, sharer
from edgeinfer.runtime.serve.messages import HEALTH, SERVICE, messages
from edgeinfer.runtime.serve.options import MOST_KEYS
from edgeinfer.runtime.serve.requestlog import log_line
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tensors import InferRequest
from edgeinfer.runtime.serve.terms import read_terms
from edgeinfer.runtime.serve.traces import Traces
from edgeinfer.runtime.serve.turns import OpenStreams, Turns
from edgeinfer.runtime.serve.v2 import change
from edgeinfer.types import Array, TensorSpec

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

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

_OPEN = frozenset({"ServerLive", "ServerReady", "Check"})
"""What probes ask without a key."""

_WHOLE = ("", SERVICE)
"""What ``Check`` is asked for where it is no model."""

_STREAMS, _CALLS = 100, 1024
"""Calls of one connection, and of all, that are under way at once: each may have sent 64 KiB."""

_PROBES, _PROBE_S = 4, 5.0
"""Messages of probes that are received at once, without a key, and seconds for each."""

_MOST_PARAMETERS = 64
"""Of one request or tensor; those that are known are far fewer."""

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
        self._reading, self._probing = Turns(most, what), Turns(_PROBES, what)
        self._streams = OpenStreams(most)
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
            with self._traces.span(name, given.get("traceparent"), id) as note:
                try:
                    if name not in _OPEN:
                        self._let_in(given)
                    raw = await self._received(requests, name in _OPEN)
                    await held.take(len(raw))
                    # Most of those are known, and need not be read.
                    request: Any = raw if name == "ModelInfer" else self._parsed(kind, raw)
                    if name == "Check" and request.service not in _WHOLE:
                        # Which models there are is told to who has a key.
                        self._let_in(given)
                    answer = await work(request)
                except Exception as error:
                    known = self._known(name, error)
                    code = self._code(known)
                    note("rpc.grpc.status_code", code.value[0])
                    await context.abort(code, known.text)
                finally:
                    held.release()
                note("rpc.grpc.status_code", 0)
            log_line(f"{name} OK")
            return answer

        # On the wire it is a call with one message, which is received behind the key.
        return self._grpc.stream_unary_rpc_method_handler(
            call,
            response_serializer=_serialized,
        )

    async def _received(self, requests: AsyncIterator[bytes], is_open: bool) -> bytes:
        """Receive the message of a call, as many at once as there is memory for.

        Raises:
            RequestError: others are received, it did not come in time, or there is none.
        """
        seconds = _PROBE_S if is_open else self._hub.options.limits.body_s
        turns, share = (self._probing, b"") if is_open else (self._reading, sharer())
        await turns.take(share)
        try:
            late = RequestError(408, f"the message did not come within {seconds:g} s")
            return await in_time(anext(requests), seconds, late)
        except StopAsyncIteration as e:
            raise RequestError(400, "the call has no message") from e
        finally:
            turns.give(share)

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
        try:
            self._let_in(dict(context.invocation_metadata() or ()))
            share = sharer()
            self._streams.take(share)
        except RequestError as error:
            await context.abort(self._code(error), error.text)
        try:
            async with contextlib.aclosing(self._answered(requests)) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._streams.give(share)

    async def _answered(self, requests: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
        most = self._hub.options.limits.queue
        running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(most)

        async def take() -> None:
            async for raw in requests:
                held = Held(self._hub.memory)
                problem: RequestError | None = None
                try:
                    await held.take(len(raw))
                except RequestError as error:
                    problem = error
                # Steps of a sequence start in their order: each is read before the next.
                read: Awaitable[Any] = self._streamed(raw, held, problem)
                await running.put(asyncio.ensure_future(read))
            await running.put(None)

        taking = asyncio.ensure_future(take())
        try:
            while (task := await running.get()) is not None:
                yield await task
        finally:
            taking.cancel()
            while not running.empty():
                if (left := running.get_nowait()) is not None:
                    left.cancel()

    async def _streamed(self, raw: bytes, held: Held, problem: RequestError | None) -> Any:
        """Return the answer to one request of a stream; an error ends only that one.

        Args:
            raw: the message.
            held: its memory; given back.
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
            response.infer_response.CopyFrom(answer)
        except Exception as error:
            response.error_message = self._known("ModelStreamInfer", error).text
            response.infer_response.id = request.id
            response.infer_response.model_name = request.model_name
        finally:
            held.release()
        return response

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


def read(
    request: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], limit: int
) -> InferRequest:
    """Read a request.

    Args:
        request: the message.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        limit: elements of one tensor.

    Raises:
        RequestError: with status 400 and what is wrong.
    """
    known = {spec.name: spec for spec in inputs}
    _check_counts(request, len(inputs), len(outputs))
    raw = list(request.raw_input_contents)
    feeds: dict[str, Array] = {}
    for number, given in enumerate(request.inputs):
        item = {
            "name": given.name,
            "datatype": given.datatype,
            "shape": list(given.shape),
            "parameters": _parameters(given.parameters),
        }
        name = tensors.name_of(item, f"inputs[{number}]", known)
        if name in feeds:
            raise RequestError(400, f"input {name!r}: given twice")
        if raw:
            if given.contents.ListFields():
                raise RequestError(400, f"input {name!r}: contents beside raw_input_contents")
            feeds[name] = tensors.from_bytes(item, known[name], memoryview(raw[number]), limit)
        else:
            item["data"] = _values(given, known[name])
            feeds[name] = tensors.from_values(item, known[name], limit)
    asked = [
        {"name": each.name, "parameters": _parameters(each.parameters)} for each in request.outputs
    ]
    names, binary = tensors.wanted_outputs({"outputs": asked} if asked else {}, {}, outputs)
    return InferRequest(
        request.id, feeds, names, binary, read_terms(_parameters(request.parameters))
    )


def _check_counts(request: Any, inputs: int, outputs: int) -> None:
    """Refuse more than a model has before lists are made of it: the event loop waits for them."""
    count = len(request.raw_input_contents)
    if count and count != len(request.inputs):
        raise RequestError(
            400, f"raw_input_contents: expected {len(request.inputs)}, received {count}"
        )
    sides = (("inputs", request.inputs, inputs), ("outputs", request.outputs, outputs))
    for what, given, most in sides:
        if len(given) > most:
            raise RequestError(400, f"{what}: the model has {most}, received {len(given)}")
    for given in request.inputs:
        if len(given.shape) > tensors.MOST_AXES:
            raise RequestError(400, f"input {given.name!r}: shape: {len(given.shape)} sizes")


def _values(given: Any, spec: TensorSpec) -> list[Any]:
    field = _CONTENTS.get(tensors.datatype(spec))
    if field is None:
        raise RequestError(400, f"input {spec.name!r}: {given.datatype} travels as raw bytes only")
    others = [f.name for f, _ in given.contents.ListFields() if f.name != field]
    if others:
        raise RequestError(
            400, f"input {spec.name!r}: expected values in {field}, received {', '.join(others)}"
        )
    values = list(getattr(given.contents, field))
    if field != "bytes_contents":
        return values
    try:
        return [str(value, "utf-8") for value in values]
    except UnicodeDecodeError as e:
        raise RequestError(400, f"input {spec.name!r}: a text is not UTF-8") from e


def _parameters(given: Any) -> dict[str, Any]:
    if len(given) > _MOST_PARAMETERS:
        raise RequestError(400, f"parameters: at most {_MOST_PARAMETERS}, received {len(given)}")
    found = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        found[name] = None if kind is None else getattr(value, kind)
    return found


def _count(problem: RequestError | None) -> None:
    if problem is not None:
        raise problem
    if (grant := GRANT.get()) is not None:
        grant.count_request()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _serialized(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
