"""Chat templates: messages to the text that a model was trained to continue.

A template is a program of a stranger. It runs in a sandbox, which gives it neither files nor
Python's attributes, and counts what it does (``sandbox``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from edgeinfer.bounded import parse_json
from edgeinfer.errors import DamagedError, InputError, NotAvailableError
from edgeinfer.installed import install
from edgeinfer.llm.generation import MOST_TEMPLATE, TEMPLATE_NAME
from edgeinfer.printable import visible

Message = Mapping[str, Any]

_LONGEST_FORM = 200


class ChatTemplate:
    """A template of a bundle.

    Args:
        text: Jinja, as model hubs have it.
        tokens: special tokens by the names that templates use, such as ``bos_token``.

    Raises:
        NotAvailableError: jinja2 is not installed.
        DamagedError: it is no template.
    """

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        try:
            from edgeinfer.runtime.llm import sandbox
        except ImportError as e:
            raise NotAvailableError(f"chat templates need jinja2: {install('llm')}") from e
        if len(text) > MOST_TEMPLATE:
            raise DamagedError(f"{TEMPLATE_NAME}: it has more than {MOST_TEMPLATE} characters")
        environment = sandbox.Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
            extensions=["jinja2.ext.loopcontrols", _generation()],
        )
        environment.add("tojson", _tojson)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._budget = sandbox.budget
        try:
            with sandbox.budget(text):
                self._template = environment.from_string(text)
        # Of what a stranger wrote, jinja2 and Python's compiler refuse each part in its own way.
        except Exception as e:
            raise DamagedError(f"{TEMPLATE_NAME}: {visible(' '.join(str(e).split()))[:200]}") from e
        self._tokens = dict(tokens)
        self._objects: bool | None = None
        self.text = text

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: bool = True,
        **more: Any,
    ) -> str:
        """Return the text for the tokenizer.

        Args:
            messages: each with a ``role`` and a ``content``, oldest first.
            tools: functions that the model may call, as JSON schemas.
            prompt: end with what begins the model's own turn.
            more: further variables of the template, such as ``enable_thinking``.

        Raises:
            InputError: messages are not of that form, or the template refuses them.
        """
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InputError(f"messages[{index}]", "an object with a role", repr(message)[:60])
        if not messages:
            raise InputError("messages", "at least one", "none")
        if any(message.get("tool_calls") for message in messages):
            shown = as_objects if self._shows_objects() else as_texts
            messages = [with_arguments(message, shown) for message in messages]
        return self._rendered(messages, tools, prompt, more)

    def _shows_objects(self) -> bool:
        """Whether the template writes the arguments of calls itself, as most do, and not as text.

        It is tried on a call: one fails that adds texts, or writes an object as Python does.
        """
        if self._objects is None:
            try:
                found = self._rendered(_CALLED, [_CALLED_TOOL], True, {})
                self._objects = f"'{_PROBE}'" not in found
            except InputError:
                texts = [with_arguments(message, as_texts) for message in _CALLED]
                try:
                    self._objects = _PROBE not in self._rendered(texts, [_CALLED_TOOL], True, {})
                except InputError:
                    self._objects = True
        return self._objects

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        prompt: bool,
        more: Mapping[str, Any],
    ) -> str:
        variables = {**self._tokens, **more, "messages": list(messages)}
        given = list(tools) if tools else None
        try:
            with self._budget((variables, given)):
                return self._template.render(variables, tools=given, add_generation_prompt=prompt)
        # A stranger's program may fail in any way.
        except Exception as e:
            reason = visible(" ".join(str(e).split()))[:200] or type(e).__name__
            raise InputError("messages", "what the chat template takes", reason) from e


_PROBE = "edgeinfer_probe"
_CALLED_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
_CALLED: tuple[Message, ...] = (
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "123456789",
                "type": "function",
                "function": {"name": "probe", "arguments": {_PROBE: 1}},
            }
        ],
    },
)


def with_arguments(message: Message, form: Callable[[Any], Any]) -> Message:
    """Bring the arguments of a message's calls to another form; what are no calls stays."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    made = []
    for call in calls:
        inner = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(inner, Mapping) and "arguments" in inner:
            call = {**call, "function": {**inner, "arguments": form(inner["arguments"])}}
        made.append(call)
    return {**message, "tool_calls": made}


def as_objects(arguments: Any) -> Any:
    """Return the object that a JSON text of arguments has; what is none stays."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = parse_json(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def as_texts(arguments: Any) -> Any:
    """Return the JSON text of arguments that are an object."""
    return _tojson(arguments) if isinstance(arguments, Mapping) else arguments


def plain(message: Message, where: str) -> Message:
    """Join the texts that a message's content lists, for a template that shows texts alone.

    Raises:
        InputError: a part is no text.
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    for at, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            received = part.get("type") if isinstance(part, Mapping) else part
            raise InputError(f"{where}.content[{at}]", "a text", repr(received)[:60])
    return {**message, "content": "".join(part["text"] for part in content)}


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    # Jinja's own escapes characters of HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(form: str) -> str:
    if len(form) > _LONGEST_FORM:
        raise ValueError("strftime_now: a form of a date is short")
    return datetime.now().astimezone().strftime(form)


def _generation() -> Any:
    """Return an extension for ``{% generation %}``, which marks what a model said in training."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
