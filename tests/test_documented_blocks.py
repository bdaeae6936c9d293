"""Every block of code in the manual is run, typed, parsed, or says that it is no code.

By its language: ``sh`` is run (``test_documented_pages``), ``python`` is typed by mypy, and run on
the pages named there; ``kotlin`` is compiled; ``toml`` is read as what it is. A block without a
language names models or devices that only its reader has: its commands are parsed by the real
command, and modules and targets of make that it names exist. ``text`` is no code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgeinfer import toml
from edgeinfer.cli.group import edgeinfer
from edgeinfer.media import parse_description

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
RUN = ("quickstart.md", "devices.md", "frameworks.md")
"""Pages whose ``sh`` is run."""

LANGUAGES = {"sh", "python", "toml", "kotlin", "swift", "dockerfile", "text", ""}
SITE = ("{eval-rst}", "{toctree}", "{include} ")
"""What the site's generator reads."""

TOOLS = {
    "edgeinfer",
    "make",
    "python",
    "python3",
    "pip",
    "git",
    "curl",
    "docker",
    "scp",
    "ssh",
    "cd",
}


def blocks() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text("utf-8")):
            yield page.name, language, text


def commands(text: str) -> Iterator[list[str]]:
    """Split what is typed into words; a line that ends with a backslash goes on."""
    for line in re.sub(r"\\\n *", " ", text).splitlines():
        for part in re.split(r"&&|\|(?=\s)|;(?=\s)", line.split(" # ")[0].removeprefix("$ ")):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            while words and ("=" in words[0].split("/")[0] or words[0] in ("sudo", "time")):
                words = words[1:]
            if words:
                yield words


def problem(words: list[str]) -> str:
    """Say what is wrong with a command; empty where nothing is."""
    tool = words[0].rsplit("/", 1)[-1]
    if tool == "edgeinfer":
        return _parsed(edgeinfer, words[1:])
    if tool == "make":
        known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        return ", ".join(w for w in words[1:] if "=" not in w and w not in known)
    if tool.startswith("python") and "-m" in words[:3]:
        module = words[words.index("-m") + 1]
        if module.split(".")[0] in ("tests", "benchmarks", "release"):
            path = ROOT / Path(*module.split("."))
            return "" if path.with_suffix(".py").exists() or path.is_dir() else module
    return ""


def _parsed(command: click.Command, words: list[str]) -> str:
    # What is written as name|name stands for each of them.
    if words and "|" in words[0]:
        return ", ".join(
            filter(None, (_parsed(command, [w, *words[1:]]) for w in words[0].split("|")))
        )
    context = click.Context(command)
    if isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            return ""
        found = command.get_command(context, words[0])
        return f"no command {words[0]}" if found is None else _parsed(found, words[1:])
    try:
        command.make_parser(context).parse_args(list(words))
    except click.UsageError as e:
        return e.format_message()
    return ""


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_every_block_says_what_it_is(page: str) -> None:
    named = {language for name, language, _ in blocks() if name == page}
    assert {language for language in named if not language.startswith(SITE)} <= LANGUAGES
    assert all(name in RUN for name, language, _ in blocks() if language == "sh")


def test_commands_are_those_of_the_product() -> None:
    seen, wrong = 0, []
    for page, language, text in blocks():
        if language not in ("", "sh"):
            continue
        for words in commands(text):
            seen += words[0] == "edgeinfer"
            if found := problem(words):
                wrong.append(f"{page}: {' '.join(words)}: {found}")
    assert wrong == []
    assert seen > 60


def test_a_wrong_command_is_found() -> None:
    (words,) = commands("$ edgeinfer convert model.onnx \\\n  --tagret cpu  # a slip\n")
    assert "--tagret" in problem(words)
    assert problem(["edgeinfer", "covnert"]) == "no command covnert"
    assert problem(["make", "tset"]) == "tset"
    assert problem(["python", "-m", "benchmarks.nothing"]) == "benchmarks.nothing"
    assert problem(["edgeinfer", "convert", "m.onnx", "-t", "cpu"]) == ""


def test_blocks_without_a_command_are_text() -> None:
    nothing = [
        f"{page}: {text[:60]!r}"
        for page, language, text in blocks()
        if language == "" and not any(words[0] in TOOLS for words in commands(text))
    ]
    assert nothing == []


def test_files_of_options_and_pipelines_are_read(tmp_path: Path) -> None:
    pipelines = 0
    for _, language, text in blocks():
        if language != "toml":
            continue
        data = toml.loads(text)
        if not data.keys() & {"inputs", "output"}:
            continue
        for name in re.findall(r'"([\w.-]+\.(?:txt|json))"', text):
            (tmp_path / name).write_text("word\n")
        (tmp_path / "pipeline.toml").write_text(text)
        parse_description(tmp_path / "pipeline.toml")
        pipelines += 1
    assert pipelines >= 4
