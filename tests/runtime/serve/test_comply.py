"""What a published checker of OpenAI's and Anthropic's APIs says of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.serve.conftest import Server

pytest.importorskip("llm_comply", reason="pip install llm-comply")

OF_THE_MODEL = (
    "got 'length'", "got 'incomplete'", "got 'max_tokens'", "tool_calls is missing",
    "type='function_call'", "type='tool_use'",
)  # fmt: skip
"""It has random weights: it does not come to an end by itself, and calls no tool."""


def is_as_told(name: str, errors: list[str]) -> bool:
    """Whether errors are those of a model of random weights that sees no images."""
    refused = "image" in name and errors[:1] == ["HTTP 400 (expected [200])"]
    return refused or all(any(said in error for said in OF_THE_MODEL) for error in errors)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("form", "count"), [("openai-chat", 9), ("open-responses", 13), ("anthropic", 9)]
)
def test_an_api_is_as_its_checker_wants(server: Server, form: str, count: int) -> None:
    tool = str(Path(sys.executable).with_name("llm-comply"))
    command = [tool, "--format", form, "-u", f"{server.url}/v1", "-m", "tiny", "-k", "none"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)["results"]
    assert len([each for each in told if each["status"] != "skipped"]) >= count - 1
    bad = {each["id"]: each["errors"] for each in told if each["status"] == "failed"}
    assert {name: e for name, e in bad.items() if not is_as_told(name, e)} == {}
