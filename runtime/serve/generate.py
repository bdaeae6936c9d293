"""Triton's generate extension: one JSON object in, one out, or events as they come.

Source: Triton's documentation of its generate extension, and of vLLM's backend for the fields of
language models.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.runtime.batches import size_of
from edgeinfer.runtime.serve import tensors
from edgeinfer.runtime.serve.http import (
    Receive,
    RequestError,
    Send,
    answer_json,
    client_left,
    from_json,
    read_body,
    status_of,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import LARGE_BYTES, LIST_WEIGHT, held
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.streams import PAUSE, begin, sse, turns, watched, whole, write
from edgeinfer.runtime.serve.tensors import InferRequest
from edgeinfer.runtime.serve.terms import read_terms
from edgeinfer.types import TensorSpec

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.serve.asked import Asked


async def generate(hub: Hub, model: Served, is_stream: bool, receive: Receive, send: Send) -> None:
    """Answer ``POST /v2/models/NAME/generate`` and ``…/generate_stream``.

    A model of tensors takes one field an input, numbers or texts or lists of them, and gives one an
    output; a language model takes ``text_input`` and gives ``text_output``.

    Raises:
        RequestError: the request is not what the model takes.
    """
    limits = hub.options.limits
    body = await read_body(receive, limits.json_bytes, limits.body_s)
    data = await hub.parsed(body)
    with hub.counted(model):
        if (text := model.text) is not None:
            with hub.place(model):
                asked = await hub.words.run(partial(_asked, text, data, is_stream))
                del data
                held().drop_data()
                async with watched(receive):
                    await _text(model, text, asked, is_stream, send, limits.wait_s)
            return
        request = await hub.read(len(body), partial(_request, model, data, limits.elements))
        results = await hub.infer(model, request, lambda: client_left(receive))
        if (size := size_of(results)) >= LARGE_BYTES:
            # Lists of numbers take as much more.
            held().made(size * LIST_WEIGHT)
        found: dict[str, Any] = _named(model)
        if request.id:
            found["id"] = request.id
        for spec in model.outputs:
            if (array := tensors.chosen(request, results, spec.name)) is not None:
                values = tensors.to_values(spec, array)
                found[spec.name] = values[0] if array.size == 1 else values
        if not is_stream:
            await answer_json(send, found)
            return
        await begin(send)
        await write(send, sse(found), more=False)


async def _text(
    model: Served, llm: LLM, asked: Asked, is_stream: bool, send: Send, wait_s: float | None
) -> None:
    name = _named(model)
    if not is_stream:
        turn = await whole(llm, asked, wait_s)
        await answer_json(send, {**name, "text_output": asked.echo + turn.text})
        return
    started = False
    try:
        async for part in turns(llm, asked, wait_s):
            if not started:
                await begin(send)
                started = True
                part = asked.echo
            if part is None:
                await write(send, PAUSE)
            elif isinstance(part, str) and part:
                await write(send, sse({**name, "text_output": part}))
    except Exception as error:
        if not started:
            raise
        await write(send, sse({"error": status_of(error).text}))
    await write(send, b"", more=False)


def _named(model: Served) -> dict[str, Any]:
    return {"model_name": model.name, "model_version": "1"}


_OWN = frozenset({"text_input", "parameters", "sampling_parameters", "stream", "id"})


def _asked(llm: LLM, data: Mapping[str, Any], is_stream: bool) -> Asked:
    """Read a request for a text; parameters may be a field each, or an object or its JSON."""
    from edgeinfer.runtime.serve import asked as reader

    prompt = data.get("text_input")
    if not isinstance(prompt, str):
        raise RequestError(400, "text_input: expected a text")
    if data.get("stream", is_stream) is not is_stream:
        raise RequestError(400, "stream: /generate_stream streams, /generate does not")
    given: dict[str, Any] = {key: value for key, value in data.items() if key not in _OWN}
    for name in ("parameters", "sampling_parameters"):
        more = data.get(name) or {}
        if isinstance(more, str):
            more = from_json(more.encode(), name)
        if not isinstance(more, dict):
            raise RequestError(400, f"{name}: expected an object")
        given |= more
    excluded = given.pop("exclude_input_in_output", True)
    if not isinstance(excluded, bool):
        raise RequestError(400, "exclude_input_in_output: expected true or false")
    whole = {**given, "prompt": prompt, "echo": not excluded}
    (one,) = reader.completions(llm, whole, f"gen-{secrets.token_hex(8)}")
    return one


def _request(model: Served, data: Mapping[str, Any], limit: int) -> InferRequest:
    """Read a request for tensors, whose shapes are those of the lists."""
    known = {spec.name: spec for spec in model.inputs}
    id = data.get("id", "") if "id" not in known else ""
    parameters = data.get("parameters", {}) if "parameters" not in known else {}
    if not isinstance(id, str) or not isinstance(parameters, dict):
        raise RequestError(400, "id: expected a text; parameters: expected an object")
    others = [k for k in data if k not in known and k not in ("id", "parameters")]
    if others:
        raise RequestError(
            400, f"no input {', '.join(others)}; this model takes {', '.join(known)}"
        )
    feeds = {name: _tensor(known[name], data[name], limit) for name in known if name in data}
    return InferRequest(id, feeds, (), frozenset(), read_terms(parameters))


def _tensor(spec: TensorSpec, given: Any, limit: int) -> Any:
    values = given if isinstance(given, list) else [given]
    # Lists of unequal lengths are refused when they are read.
    shape, level = [len(values)], values
    while level and isinstance(level[0], list):
        level = level[0]
        shape.append(len(level))
    item = {"datatype": tensors.datatype(spec), "shape": shape, "data": values}
    return tensors.from_values(item, spec, limit)
