"""Chat templates: messages to the text that a model was trained to continue.

A template is a program of a stranger. It runs in jinja2's immutable sandbox, which gives it neither
files nor Python's attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from edgeinfer.errors import InputError, LoadError, NotAvailableError
from edgeinfer.runtime.llm.tokenizer import INSTALL

Message = Mapping[str, Any]


class ChatTemplate:
    """A template of a bundle.

    Args:
        text: Jinja, as model hubs have it.
        tokens: special tokens by the names that templates use, such as ``bos_token``.

    Raises:
        NotAvailableError: jinja2 is not installed.
        LoadError: it is no template.
    """

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as e:
            raise NotAvailableError(f"chat templates need jinja2: {INSTALL}") from e
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=False,
            extensions=["jinja2.ext.loopcontrols", _generation()],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(text)
        except TemplateError as e:
            raise LoadError(f"chat_template.jinja: {e}") from e
        self._tokens = dict(tokens)
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
        variables = {**self._tokens, **more, "messages": list(messages)}
        try:
            return self._template.render(
                variables, tools=list(tools) if tools else None, add_generation_prompt=prompt
            )
        # A stranger's program may fail in any way.
        except Exception as e:
            reason = " ".join(str(e).split()) or type(e).__name__
            raise InputError("messages", "what the chat template takes", reason) from e


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    # Jinja's own escapes characters of HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(form: str) -> str:
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
