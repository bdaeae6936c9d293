"""The Open Inference Protocol, version 2, over HTTP, with Triton's extensions that clients use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from edgeinfer.runtime.batches import size_of
from edgeinfer.runtime.serve import facts, tensors
from edgeinfer.runtime.serve.http import (
    JSON,
    LENGTH,
    Header,
    Receive,
    RequestError,
    Scope,
    Send,
    answer,
    answer_json,
    client_left,
    header,
    number_of,
    read_body,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import LIST_WEIGHT, held
from edgeinfer.runtime.serve.keys import GRANT
from edgeinfer.runtime.serve.served import Served
from edgeinfer.types import Array

BINARY = (b"content-type", b"application/octet-stream")


def result(
    model: Served, asked: tensors.InferRequest, results: Mapping[str, Array]
) -> tuple[bytes, tuple[Header, ...]]:
    """Return the body of an answer, and what its headers say of it.

    Raises:
        RequestError: the outputs hold what JSON has no word for.
    """
    content, head = model.plans.write(model.name, asked, results, model.outputs)
    return content, (JSON,) if head is None else (BINARY, (LENGTH, b"%d" % head))


class V2:
    """Answers below ``/v2``.

    Args:
        hub: the models.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def infer(self, model: Served, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a model: ``POST /v2/models/NAME[/versions/1]/infer``.

        Raises:
            RequestError: the request is not what the model takes.
        """
        asked = await self._read(model, scope, receive)
        results = await self._hub.infer(model, asked, lambda: client_left(receive))
        work = partial(result, model, asked, results)
        content, headers = await self._hub.read(size_of(results), work)
        await answer(send, 200, content, headers)

    async def _read(self, model: Served, scope: Scope, receive: Receive) -> tensors.InferRequest:
        limits = self._hub.options.limits
        if header(scope, b"content-encoding") not in (None, b"identity"):
            raise RequestError(415, "content-encoding: only identity is supported")
        size = number_of(scope, LENGTH)
        most = limits.json_bytes if size is None else limits.body_bytes
        body = await read_body(receive, most, limits.body_s)
        if size is not None and size > limits.json_bytes:
            raise RequestError(413, f"the JSON is larger than {limits.json_bytes} bytes")
        text = body if size is None else body[:size]
        if size is not None and (known := model.plans.read(text, body)) is not None:
            return known
        await self._hub.hold_data(text)
        if size is not None and model.plans.has_texts:
            # Texts among raw tensors become objects as well.
            await held().take_data((len(body) - size) * LIST_WEIGHT)

        def read() -> tensors.InferRequest:
            sides, is_shared = (model.inputs, model.outputs), self._hub.regions is not None
            return tensors.read(body, size, *sides, limits.elements, is_shared=is_shared)

        request = await self._hub.read(len(text if model.plans.is_raw else body), read)
        if size is not None:
            model.plans.keep(text, body, request)
        return request

    async def other(self, parts: list[str], method: str, receive: Receive, send: Send) -> None:
        """Answer everything else below ``/v2``; ``parts`` are the path's behind it.

        Raises:
            RequestError: there is no such address, or the request is wrong.
        """
        if parts[:1] == ["cudasharedmemory"]:
            raise RequestError(400, facts.NO_CUDA)
        handler = self._get(parts) if method == "GET" else self._post(parts, receive)
        if handler is None:
            raise RequestError(404, f"nothing is at /v2/{'/'.join(parts)} for {method}")
        await answer_json(send, await handler())

    def _get(self, parts: list[str]) -> Callable[[], Awaitable[object]] | None:
        match parts:
            case []:
                return lambda: _later(facts.server(self._hub))
            case ["systemsharedmemory", "status"]:
                return lambda: self._hub.on_regions(lambda r, who: r.status(who))
            case ["systemsharedmemory", "region", name, "status"]:
                return lambda: self._hub.on_regions(lambda r, who: r.status(who, name))
            case ["models", "stats"]:
                return lambda: _later(facts.statistics([*self._hub.visible.values()]))
            case ["models", name, *rest]:
                version, rest = (rest[1], rest[2:]) if rest[:1] == ["versions"] else ("", rest)
                model = facts.known(self._hub, name, version)
                match rest:
                    case []:
                        return lambda: _later(facts.metadata(model))
                    case ["ready"]:
                        return lambda: _ready(model)
                    case ["stats"]:
                        return lambda: _later(facts.statistics([model]))
                    case ["config"]:
                        return lambda: _later(facts.config(model))
        return None

    def _post(self, parts: list[str], receive: Receive) -> Callable[[], Awaitable[object]] | None:
        match parts:
            case ["repository", "index"]:
                return lambda: self._index(receive)
            case ["repository", "models", name, ("load" | "unload") as what]:
                model = facts.known(self._hub, name)
                return lambda: self._change(model, what, receive)
            case ["systemsharedmemory", "region", name, "register"]:
                return lambda: self._register(name, receive)
            case ["systemsharedmemory", "region", name, "unregister"]:
                return lambda: self._unregister(name)
            case ["systemsharedmemory", "unregister"]:
                return lambda: self._unregister("")
        return None

    async def _register(self, name: str, receive: Receive) -> object:
        given = await self._small(receive)
        key, offset, size = given.get("key"), given.get("offset", 0), given.get("byte_size")
        await self._hub.on_regions(lambda r, who: r.register(who, name, key, offset, size))
        return {}

    async def _unregister(self, name: str) -> object:
        await self._hub.on_regions(lambda r, who: r.unregister(who, name))
        return {}

    async def _index(self, receive: Receive) -> object:
        data = await self._small(receive)
        return facts.index(self._hub, ready=data.get("ready") is True)

    async def _small(self, receive: Receive) -> dict[str, Any]:
        body = await read_body(receive, 1 << 16, self._hub.options.limits.body_s)
        return await self._hub.parsed(body) if body.strip() else {}

    async def _change(self, model: Served, what: str, receive: Receive) -> object:
        parameters = (await self._small(receive)).get("parameters")
        await change(self._hub, model, what, parameters)
        return {}


async def change(hub: Hub, model: Served, what: str, parameters: Any = None) -> None:
    """Load or unload a model.

    Args:
        hub: that has it.
        model: which.
        what: ``load`` or ``unload``.
        parameters: Parameters of the request; ``unload_dependents`` asks for nothing here.

    Raises:
        RequestError: 503, it could not be loaded; 400, something else is to be loaded; 403, the
            key may use some models only, and others use this one too.
    """
    grant = GRANT.get()
    if grant is not None and grant.models:
        raise RequestError(403, f"to {what} a model, a key without models= is needed")
    if hub.options.replicated:
        raise RequestError(400, "replicas keep their models; change what the cluster serves")
    if not isinstance(parameters, dict | None):
        raise RequestError(400, "parameters: expected an object")
    if parameters and parameters.keys() - {"unload_dependents"}:
        raise RequestError(400, "parameters: models are loaded from the bundles given at start")
    await hub.loader.change(model, what)


async def _later(data: object) -> object:
    return data


async def _ready(model: Served) -> object:
    if not model.is_ready:
        raise RequestError(503, f"model {model.name!r} is not ready: {model.state}", 1.0)
    return {"name": model.name, "ready": True}
