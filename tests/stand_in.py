"""A language model of nobody, for the assistant: it answers in the form that is requested.

``python -m tests.stand_in SCRIPT ARGUMENT...`` runs a script that finds it in place of
``edgeinfer.LLM``.
"""

from __future__ import annotations

import json
import runpy
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

SAYS = "Light it is."


class Model:
    """Says the same to everything, and takes the first of the actions."""

    asked: ClassVar[list[str]] = []

    def __init__(self, bundle: str) -> None:
        assert bundle == "chat.edge"

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def chat(self, messages: list[dict[str, str]], params: Any = None) -> SimpleNamespace:
        self.asked.append(messages[-1]["content"])
        form = json.loads(params.grammar.text)
        action = form["properties"]["action"]["enum"][1]
        text = json.dumps({"say": SAYS, "action": action})
        return SimpleNamespace(text=text, outputs=[SimpleNamespace(finish="stop")])


if __name__ == "__main__":
    import edgeinfer

    vars(edgeinfer)["LLM"] = Model
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
