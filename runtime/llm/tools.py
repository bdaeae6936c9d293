"""Calls of tools: how a model writes them, what makes it write one, and finding them in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeinfer.bounded import parse_json
from edgeinfer.errors import InputError, UsageError
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.chat import ChatTemplate
from edgeinfer.runtime.llm.params import Grammar


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: Name of it.
        description: for the model.
        parameters: a JSON schema of its arguments, an object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Tool:
        """Read one, bare or in ``{"type": "function", "function": …}``.

        Raises:
            InputError: it is not of that form.
        """
        inner = data.get("function", data) if isinstance(data, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise InputError("tools", "objects with a name", repr(data)[:80])
        parameters = inner.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, Mapping):
            raise InputError("tools", f"a JSON schema for {inner['name']}", repr(parameters)[:80])
        return cls(inner["name"], str(inner.get("description", "")), parameters)

    def as_openai(self) -> dict[str, Any]:
        """Return the form that chat templates take."""
        inner = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": inner}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote.

    Attributes:
        name: Name of the tool.
        arguments: JSON text of an object.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How the models of a family write calls.

    Attributes:
        name: Name of the format; empty where the template knows no tools.
        begin: before the JSON of a call.
        end: after it.
        key: Key of the arguments.
        listed: a list of calls stands between begin and end, instead of one.
        mark: Mark that models may write before the JSON.
    """

    name: str
    begin: str = ""
    end: str = ""
    key: str = "arguments"
    listed: bool = False
    mark: str = ""

    def grammar(self, tools: Sequence[Tool], choice: str) -> Grammar | None:
        """Return what makes a model call a tool; None where it may choose.

        Raises:
            UsageError: the model knows no tools.
            InputError: no tool has the name.
        """
        if not self.name:
            raise UsageError("the model's chat template knows no tools")
        if choice == "auto":
            return None
        chosen = [t for t in tools if choice in ("required", t.name)]
        if not chosen:
            names = ", ".join(tool.name for tool in tools)
            raise InputError("tool_choice", f"auto, required, none or one of {names}", choice)
        one: dict[str, Any] = {"anyOf": [self._schema(tool) for tool in chosen]}
        schema = {"type": "array", "items": one, "minItems": 1} if self.listed else one
        written = json.dumps(schema)
        text = [_literal(self.begin), f"%json {written}", _literal(self.end)]
        return Grammar("lark", "start: " + " ".join(part for part in text if part), written)

    def _schema(self, tool: Tool) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"name": {"const": tool.name}, self.key: dict(tool.parameters)},
            "required": ["name", self.key],
            "additionalProperties": False,
        }

    def calls(self, text: str) -> tuple[ToolCall, ...]:
        """Return the calls in a text; what is not whole is none."""
        if not self.name:
            return ()
        return tuple(call for part in self._parts(text) for call in self._read(part))

    def _parts(self, text: str) -> Iterator[str]:
        # Models leave the white space out, or write more.
        begin, end = self.begin.strip(), self.end.strip()
        if not begin:
            yield text.strip().removeprefix(self.mark)
            return
        at = 0
        while (begun := text.find(begin, at)) >= 0:
            begun += len(begin)
            ended = text.find(end, begun) if end else len(text)
            if ended < 0:
                return
            yield text[begun:ended]
            at = ended + len(end)

    def _read(self, text: str) -> list[ToolCall]:
        calls = []
        try:
            data = parse_json(text)
            for each in data if isinstance(data, list) else [data]:
                if isinstance(each, dict) and isinstance(each.get("name"), str):
                    arguments = each.get(self.key)
                    if isinstance(arguments, dict):
                        written = json.dumps(arguments, ensure_ascii=False)
                        calls.append(ToolCall(each["name"], written))
        except (ValueError, RecursionError):
            return []
        return calls


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


_PYTHON = "<|python_tag|>"

FORMATS = (
    (r"<tool_call>", ToolFormat("hermes", "<tool_call>\n", "\n</tool_call>")),
    (r"\[TOOL_CALLS\]", ToolFormat("mistral", "[TOOL_CALLS]", "", listed=True)),
    (r"<\|python_tag\|>|\"parameters\"", ToolFormat("llama3", key="parameters", mark=_PYTHON)),
    (r"\btools\b", ToolFormat("json")),
)
"""What a template holds, and the format that its models were trained on; the first counts."""


def tool_format(template: ChatTemplate | None) -> ToolFormat:
    """Return how the models of a template write calls."""
    if template is not None:
        for pattern, found in FORMATS:
            if re.search(pattern, template.text):
                return found
    return ToolFormat("")
