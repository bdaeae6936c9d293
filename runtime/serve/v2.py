"""The Open Inference Protocol, version 2, over HTTP, with Triton's extensions that clients use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from edgeinfer import __version__
from edgeinfer.runtime.serve import tensors
from edgeinfer.runtime.serve.http import (
    Receive,
    RequestError,
    Scope,
    Send,
    answer,
    answer_json,
    from_json,
    header,
    read_body,
)
from edgeinfer.runtime.serve.hub import Hub, Served

LENGTH = b"inference-header-content-length"
LARGE_BYTES = 64 << 10
"""Bodies from this size on are decoded in a thread, so that others do not wait for them."""

EXTENSIONS = [
    "binary_tensor_data",
    "statistics",
    "model_repository",
    "model_repository(unload_dependents)",
]


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
        limits = self._hub.options.limits
        if header(scope, b"content-encoding") not in (None, b"identity"):
            raise RequestError(415, "content-encoding: only identity is supported")
        body = await read_body(receive, limits.body_bytes, limits.body_s)
        size = _length(scope)

        def read() -> tensors.InferRequest:
            return tensors.read(body, size, model.inputs, model.outputs, limits.elements)

        loop = asyncio.get_running_loop()
        small = len(body) < LARGE_BYTES
        request = read() if small else await loop.run_in_executor(None, read)
        priority, deadline = _scheduling(request)
        results = await self._hub.infer(model, request.feeds, receive, priority, deadline)

        def write() -> tuple[bytes, int | None]:
            return tensors.write(model.name, request, results, model.outputs)

        large = sum(a.nbytes for a in results.values()) >= LARGE_BYTES
        content, head = await loop.run_in_executor(None, write) if large else write()
        if head is None:
            await answer(send, 200, content)
        else:
            binary = (b"content-type", b"application/octet-stream")
            await answer(send, 200, content, (binary, (LENGTH, str(head).encode())))

    async def other(self, parts: list[str], method: str, receive: Receive, send: Send) -> None:
        """Answer everything else below ``/v2``; ``parts`` are the path's behind it.

        Raises:
            RequestError: there is no such address, or the request is wrong.
        """
        handler = self._get(parts) if method == "GET" else self._post(parts, receive)
        if handler is None:
            raise RequestError(404, f"nothing is at /v2/{'/'.join(parts)} for {method}")
        await answer_json(send, await handler())

    def _get(self, parts: list[str]) -> Callable[[], Awaitable[object]] | None:
        match parts:
            case []:
                return self._server
            case ["models", "stats"]:
                return self._all_stats
            case ["models", name, *rest]:
                model = self._known(name, rest)
                match rest[2:] if rest[:1] == ["versions"] else rest:
                    case []:
                        return lambda: _later(self._metadata(model))
                    case ["ready"]:
                        return lambda: _ready(model)
                    case ["stats"]:
                        return lambda: _later({"model_stats": [self._stats(model)]})
                    case ["config"]:
                        return lambda: _later(self._config(model))
        return None

    def _post(self, parts: list[str], receive: Receive) -> Callable[[], Awaitable[object]] | None:
        match parts:
            case ["repository", "index"]:
                return self._index
            case ["repository", "models", name, ("load" | "unload") as what]:
                model = self._known(name, [])
                return lambda: self._change(model, what, receive)
        return None

    def _known(self, name: str, rest: list[str]) -> Served:
        model = self._hub.models.get(name)
        if model is None:
            raise RequestError(404, f"no model {name!r}; known: {', '.join(self._hub.models)}")
        if rest[:1] == ["versions"] and rest[1:2] != ["1"]:
            raise RequestError(404, f"model {name!r}: there is version 1 only")
        return model

    async def _server(self) -> object:
        return {"name": "edgeinfer", "version": __version__, "extensions": EXTENSIONS}

    def _metadata(self, model: Served) -> object:
        return {
            "name": model.name,
            "versions": ["1"],
            "platform": f"edgeinfer_{model.kind}",
            "inputs": [tensors.metadata(spec) for spec in model.inputs],
            "outputs": [tensors.metadata(spec) for spec in model.outputs],
        }

    def _config(self, model: Served) -> object:
        return {
            "name": model.name,
            "platform": f"edgeinfer_{model.kind}",
            "max_batch_size": 0,
            "input": [_typed(tensors.metadata(spec)) for spec in model.inputs],
            "output": [_typed(tensors.metadata(spec)) for spec in model.outputs],
        }

    async def _all_stats(self) -> object:
        return {"model_stats": [self._stats(m) for m in self._hub.models.values()]}

    def _stats(self, model: Served) -> dict[str, Any]:
        found: dict[str, Any] = {"name": model.name, "version": "1", "waiting": model.waiting}
        if model.tensors is not None:
            stats = model.tensors.stats()
            calls = stats.calls
            mean_ns = int((calls.mean_ms or 0.0) * 1e6)
            found |= {
                "inference_count": calls.runs,
                "execution_count": stats.batches,
                "inference_stats": {
                    "success": {"count": calls.runs, "ns": calls.runs * mean_ns},
                    "fail": {"count": sum(calls.failures.values()), "ns": 0},
                },
                "memory_mb": stats.memory_mb,
            }
        return found

    async def _index(self) -> object:
        return [
            {
                "name": m.name,
                "version": "1",
                "state": "READY" if m.is_ready else "UNAVAILABLE",
                "reason": "" if m.is_ready else m.state,
            }
            for m in self._hub.models.values()
        ]

    async def _change(self, model: Served, what: str, receive: Receive) -> object:
        limits = self._hub.options.limits
        body = await read_body(receive, 1 << 16, limits.body_s)
        data = from_json(body) if body.strip() else {}
        if data.get("parameters"):
            raise RequestError(400, "parameters: models are loaded from the bundles given at start")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, getattr(self._hub, what), model)
        if what == "load" and not model.is_ready:
            raise RequestError(503, f"model {model.name!r}: {model.state}")
        return {}


async def _later(data: object) -> object:
    return data


async def _ready(model: Served) -> object:
    if not model.is_ready:
        raise RequestError(503, f"model {model.name!r} is not ready: {model.state}", 1.0)
    return {"name": model.name, "ready": True}


def _typed(described: dict[str, Any]) -> dict[str, Any]:
    shape, name = described["shape"], described["name"]
    return {"name": name, "data_type": f"TYPE_{described['datatype']}", "dims": shape}


def _length(scope: Scope) -> int | None:
    found = header(scope, LENGTH)
    if found is None:
        return None
    if not found.isdigit() or len(found) > 12:
        raise RequestError(400, "inference-header-content-length: expected a number")
    return int(found)


def _scheduling(request: tensors.InferRequest) -> tuple[float | None, float | None]:
    """Return priority and deadline of a request; other parameters are refused by name."""
    known = {"binary_data_output", "priority", "timeout"}
    if unknown := sorted(request.parameters.keys() - known):
        raise RequestError(400, f"parameters: {', '.join(unknown)}: not supported")
    priority, timeout = request.parameters.get("priority"), request.parameters.get("timeout")
    for name, value in (("priority", priority), ("timeout", timeout)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RequestError(400, f"parameters: {name}: expected a number")
    # Triton counts timeouts in microseconds.
    return priority, None if timeout is None else max(0.0, timeout / 1e6)
