"""Requests of OpenAI's API as requests of the engine; a field that is not known is refused by name.

Source: OpenAI's API reference of chat completions and completions; ``top_k``, ``min_p``,
``repetition_penalty``, ``ignore_eos``, ``cache_salt`` and ``priority`` as in vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import Grammar, SamplingParams
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.serve.http import Harmless, RequestError, not_known
from edgeinfer.runtime.serve.keys import owner
from edgeinfer.runtime.serve.meaning import reads
from edgeinfer.runtime.serve.seeing import KINDS, contents

_NUMBERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
}
_COUNTS = {
    "top_k": "top_k",
    "seed": "seed",
    "n": "n",
    "min_tokens": "min_tokens",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
_COMMON = frozenset(
    {*_NUMBERS, *_COUNTS, "model", "stream", "stream_options", "stop", "logit_bias", "ignore_eos"}
    | {"cache_salt", "priority", "adapter"}
)
_CHAT = _COMMON | {
    *("messages", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice"),
    "chat_template_kwargs",
}
_COMPLETION = _COMMON | {"prompt", "logprobs", "echo", "response_format"}

_HARMLESS: Harmless = {
    "store": (False, None),
    "user": str,
    "safety_identifier": str,
    "metadata": (None, {}),
    "service_tier": (None, "auto", "default"),
    "parallel_tool_calls": (True, None),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "modalities": (None, ["text"]),
    "verbosity": (None, "medium"),
    "reasoning_effort": (None,),
    "functions": (None,),
    "function_call": (None,),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
}

_OWN = {
    *("self", "messages", "params", "tools", "tool_choice", "adapter", "id", "prompt", "salt"),
    "go_on",
}
"""What a template is given by other fields."""

MOST_TEXTS = 128
"""Of ``n``, and of prompts in one request."""

MOST_TOOLS = 128
"""Tools of one request."""

MOST_SALT = 128
"""Characters of ``cache_salt``."""

MOST_PRIORITY = 1 << 31
"""Of ``priority``, either way."""

MOST_STOPS, MOST_STOP_TEXT = 32, 1024
"""Texts that end a generation, and their characters: all are sought at every token."""

MOST_LOGPROBS = 20
"""Of the most probable tokens that are reported next to a chosen one."""

MOST_TOLD = 1 << 19
"""Logarithms of probabilities in one answer: each takes half a kilobyte until it is sent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked.

    Attributes:
        request: for the engine.
        stream: send what is new as it comes.
        usage: tell it at the end of a stream.
        logprobs: wanted.
        tools: calls may come.
        echo: text that is to stand before the answer.
    """

    request: SequenceRequest
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    tools: bool = False
    echo: str = ""


def chats(llm: LLM, data: Mapping[str, Any], id: str, *, most: int) -> list[Asked]:
    """Read a request for a chat completion.

    Args:
        llm: Model that is asked.
        data: what came.
        id: Identifier of the request.
        most: values that an image may have.

    Raises:
        RequestError: names the field that is wrong or not supported.
        InputError: a value is not what the model takes.
    """
    _known(data, _CHAT)
    params = _params(llm, data)
    logprobs = _flag(data, "logprobs")
    top = _count(data, "top_logprobs", most=MOST_LOGPROBS)
    if top is not None and not logprobs:
        raise RequestError(400, "top_logprobs: needs logprobs")
    if logprobs:
        params = replace(params, logprobs=top or 0)
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "messages: expected a list with at least one message")
    if len(messages) > llm.context:
        raise RequestError(400, f"messages: at most {llm.context}, received {len(messages)}")
    tools = data.get("tools") or []
    if not isinstance(tools, list):
        raise RequestError(400, "tools: expected a list")
    if len(tools) > MOST_TOOLS:
        raise RequestError(400, f"tools: at most {MOST_TOOLS}, received {len(tools)}")
    template = data.get("chat_template_kwargs") or {}
    if not isinstance(template, dict):
        raise RequestError(400, "chat_template_kwargs: expected an object")
    if taken := sorted(_OWN & template.keys()):
        raise RequestError(400, f"chat_template_kwargs: {', '.join(taken)}: not the template's")
    # What an image became, and how soon that is there, is its key's alone, as pages are.
    salt, sees = owner() + _salt(data), llm.model.pictures is not None
    request = llm.chat_request(
        [_message(m, f"messages[{i}]", most if sees else 0) for i, m in enumerate(messages)],
        params,
        tools=tools,
        tool_choice=_choice(data.get("tool_choice"), bool(tools)),
        id=id,
        salt=salt,
        go_on=reads,
        **template,
    )
    _place(request, data)
    _check_told(llm, [request])
    may_call = bool(tools) and data.get("tool_choice") != "none"
    return [Asked(request, *_stream(data), logprobs=logprobs, tools=may_call)]


def completions(llm: LLM, data: Mapping[str, Any], id: str) -> list[Asked]:
    """Read a request for completions, one for each prompt.

    Raises:
        RequestError: names the field that is wrong or not supported.
        InputError: a value is not what the model takes.
    """
    _known(data, _COMPLETION)
    params = _params(llm, data)
    logprobs = _count(data, "logprobs", most=MOST_LOGPROBS)
    if logprobs is not None:
        params = replace(params, logprobs=logprobs)
    prompts = _prompts(data.get("prompt"))
    if len(prompts) > MOST_TEXTS:
        raise RequestError(400, f"prompt: {len(prompts)} prompts, at most {MOST_TEXTS}")
    stream, usage = _stream(data)
    if stream and len(prompts) > 1:
        raise RequestError(400, "stream: not supported with several prompts")
    echo = _flag(data, "echo")
    if echo and logprobs is not None:
        raise RequestError(400, "echo: not supported with logprobs")
    found = []
    for number, prompt in enumerate(prompts):
        request = llm.request(prompt, params, id=f"{id}-{number}")
        _place(request, data)
        text = ""
        if echo:
            text = prompt if isinstance(prompt, str) else llm.model.tokenizer.decode(prompt)
        found.append(Asked(request, stream, usage, logprobs is not None, echo=text))
    _check_told(llm, [one.request for one in found])
    return found


def _known(data: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := not_known(data, known, _HARMLESS):
        shown = [f"{k}={_short(data[k])}" if k in _HARMLESS else k for k in unknown]
        raise RequestError(400, f"not supported: {', '.join(shown)}")


def _short(value: Any) -> str:
    """Return the beginning of a value; of lists and objects their type, as they may be long."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:40]


def _params(llm: LLM, data: Mapping[str, Any]) -> SamplingParams:
    given: dict[str, Any] = {}
    for key, name in _NUMBERS.items():
        value = data.get(key)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RequestError(400, f"{key}: expected a number, received {value!r}")
            given[name] = float(value)
    for key, name in _COUNTS.items():
        least, most = None if key == "seed" else 0, MOST_TEXTS if key == "n" else None
        if (value := _count(data, key, least, most)) is not None:
            given[name] = value
    stop = data.get("stop")
    if stop is not None:
        stops = [stop] if isinstance(stop, str) else stop
        if not (isinstance(stops, list) and all(isinstance(s, str) for s in stops)):
            raise RequestError(400, "stop: expected a text or a list of texts")
        if len(stops) > MOST_STOPS or sum(map(len, stops)) > MOST_STOP_TEXT:
            expected = f"at most {MOST_STOPS} texts of {MOST_STOP_TEXT} characters together"
            raise RequestError(400, f"stop: expected {expected}")
        given["stop"] = tuple(stops)
    given["logit_bias"] = _biases(data.get("logit_bias"))
    given["ignore_eos"] = _flag(data, "ignore_eos")
    given["grammar"] = _grammar(data.get("response_format"))
    return replace(llm.defaults, **given)


def _place(request: SequenceRequest, data: Mapping[str, Any]) -> None:
    """Read whose cached pages a request may use, whom it comes before, and its adapter."""
    request.salt = _salt(data)
    adapter = data.get("adapter")
    if adapter is not None:
        if not isinstance(adapter, str):
            raise RequestError(400, "adapter: expected a name")
        request.adapter = adapter
    # Lower ones are first there; the engine's run the other way, as all priorities here.
    request.priority = -(_count(data, "priority", -MOST_PRIORITY, MOST_PRIORITY) or 0)


def _salt(data: Mapping[str, Any]) -> bytes:
    salt = data.get("cache_salt")
    if salt is None:
        return b""
    if not isinstance(salt, str) or not 0 < len(salt) <= MOST_SALT:
        raise RequestError(400, f"cache_salt: expected a text of 1 to {MOST_SALT} characters")
    return salt.encode()


def _check_told(llm: LLM, requests: Sequence[SequenceRequest]) -> None:
    """Refuse an answer with more logarithms of probabilities than may be kept for it."""
    count = 0
    for request in requests:
        params, room = request.params, llm.context - len(request.prompt)
        if params.logprobs is not None:
            most = room if params.max_tokens is None else min(params.max_tokens, room)
            count += params.n * max(most, 0) * (1 + params.logprobs)
    if count > MOST_TOLD:
        raise RequestError(
            400,
            f"logprobs: up to {count} would be given, at most {MOST_TOLD}: "
            "request fewer of n, logprobs or max_tokens",
        )


def _count(
    data: Mapping[str, Any], key: str, least: int | None = 0, most: int | None = None
) -> int | None:
    value = data.get(key)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):
        raise RequestError(400, f"{key}: expected a whole number, received {value!r}")
    if most is not None and value > most:
        raise RequestError(400, f"{key}: expected at most {most}, received {value}")
    return value


def _flag(data: Mapping[str, Any], key: str) -> bool:
    value = data.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(400, f"{key}: expected true or false, received {value!r}")
    return value


def _biases(given: Any) -> dict[int, float]:
    if given is None:
        return {}
    try:
        return {int(token): float(bias) for token, bias in given.items()}
    except (AttributeError, TypeError, ValueError) as e:
        raise RequestError(400, "logit_bias: expected an object from tokens to numbers") from e


def _grammar(given: Any) -> Grammar | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json")
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if not isinstance(schema, dict):
            raise RequestError(400, "response_format: json_schema: expected a schema")
        return Grammar("json_schema", json.dumps(schema))
    raise RequestError(400, f"response_format: type {kind!r} is not supported")


def _message(given: Any, where: str, most: int) -> dict[str, Any]:
    """Read a message.

    Args:
        given: what came.
        where: it stands.
        most: values that an image may have; 0 where the model sees none.
    """
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise RequestError(400, f"{where}: expected an object with a role")
    content = given.get("content")
    if isinstance(content, list):
        parts = [_part(part, f"{where}.content[{i}]", most) for i, part in enumerate(content)]
        if all(isinstance(part, str) for part in parts):
            return {**given, "content": "".join(map(str, parts))}
        return {**given, "content": [*map(_shown, parts)]}
    if content is None and not given.get("tool_calls"):
        raise RequestError(400, f"{where}: content is missing")
    if content is not None and not isinstance(content, str):
        raise RequestError(400, f"{where}: content: expected a text or a list of parts")
    return {**given, "content": content or ""}


def _part(part: Any, where: str, most: int) -> str | bytes:
    """Return the text of a part, or the file of an image."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in KINDS and most:
        return contents(part, where, most)
    if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        reads = "text and images" if most else "text"
        raise RequestError(
            400, f"{where}: type {kind!r} is not supported; this model reads {reads}"
        )
    return str(part["text"])


def _shown(part: str | bytes) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "image": part}


def _choice(given: Any, has_tools: bool) -> str:
    if given is None:
        return "auto"
    if not has_tools:
        raise RequestError(400, "tool_choice: needs tools")
    if given in ("auto", "none", "required"):
        return str(given)
    function = given.get("function") if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError(400, f"tool_choice: {given!r} is not supported")
    return name


def _stream(data: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = _flag(data, "stream")
    options = data.get("stream_options")
    if options is None:
        return stream, False
    if not stream or not isinstance(options, dict):
        raise RequestError(400, "stream_options: expected an object, with stream")
    if unknown := sorted(options.keys() - {"include_usage", "include_obfuscation"}):
        raise RequestError(400, f"stream_options: not supported: {', '.join(unknown)}")
    return stream, _flag(options, "include_usage")


def _prompts(given: Any) -> Sequence[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(type(t) is int for t in given):
            return [given]
        if all(isinstance(p, str) for p in given):
            return list(given)
        if all(isinstance(p, list) and all(type(t) is int for t in p) for p in given):
            return list(given)
    raise RequestError(400, "prompt: expected a text, texts, tokens or lists of tokens")
