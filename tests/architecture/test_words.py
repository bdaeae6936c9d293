"""Help, messages, docstrings and manual use the field's words: a list of phrases that do not stand.

Each phrase was in the project once, and stopped native readers.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

from edgeinfer.cli.group import COMMANDS, edgeinfer
from tests.architecture.tree import ROOT, modules

BANNED = {
    r"only a run (knows|tells)": "dynamic, known only at run time",
    r"for ever\b": "forever",
    r"[Tt]ake note\b": "store the arguments",
    r"\b(engine|process|one) (goes|went) down\b": "crashes",
    r"said to be one": "reported as one",
    r"orders? of the (hot )?loops": "schedule",
    r"proof it holds": "verified",
    r"\btold\b": "reported, given, shown, set, distinguished",
    r"What counts\.": "the optimisation goal",
    r"Of ranges\.": "how quantization ranges are chosen",
    r"the oracles were not asked": "there are no expected outputs",
    r"\b([Aa]n?|one|each|every|the|two|takes?|reading) pictures?\b(?![-_/.`'\"=])": "image",
    r"\b[Tt]urned (box|boxes|rectangles?)\b": "rotated",
    r"\b(takes|holds no|pieces of|seconds? of|without) sounds?\b": "audio",
    r"(sound|audio|[Rr]ecording) that comes in pieces": "in chunks",
    r"--picture\b": "--image-input",
    r"\bTurned\b": "Rotated",
    r"\bturned_weights\b": "transposed weights",
    r"\bturned( = |: |, )": "reversed, rotated, transposed, counted from the end",
    r"\b(at|of|from|these|whole|nearest|known|padded|sampled|between) places\b": "positions",
    r"\b(is|are|was|were|be|not|what) asked for\b": "requested",
    r"\bbeside (the|an?|its?|them|what|those|others|each|this)\b": "next to, besides, against",
    r"\bLocalPicture\b|\bSoundClassifier\b": "LocalImage, AudioClassifier",
}
"""Regular expressions with what to write instead."""

PREPOSITIONS = ("Of", "In", "At", "By", "For", "On", "With")
"""With which no help of an option begins."""


def texts() -> Iterator[tuple[str, str]]:
    for module in modules():
        yield module.where, module.text
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def test_banned_phrases_do_not_stand() -> None:
    found = [
        f"{where}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}: {better}"
        for where, text in texts()
        for phrase, better in BANNED.items()
        for hit in re.finditer(phrase.replace(" ", r"\s+"), text)
    ]
    assert found == []


def test_the_help_of_an_option_is_a_sentence_of_its_own() -> None:
    context = click.Context(edgeinfer)
    wrong = []
    for name in COMMANDS:
        command = edgeinfer.get_command(context, name)
        for option in command.params if command is not None else ():
            help = getattr(option, "help", None) or ""
            if help.split(" ")[0] in PREPOSITIONS or (help and not help.endswith(".")):
                wrong.append(f"{name} {option.opts[-1]}: {help}")
    assert wrong == []


ATTRIBUTE = re.compile(r"^ {8,}\*{0,2}[a-z_]\w*: of .*$", re.MULTILINE)


def test_an_attribute_begins_with_a_noun() -> None:
    found = [
        f"{m.where}: {hit[0].strip()}" for m in modules() for hit in ATTRIBUTE.finditer(m.text)
    ]
    assert found == [], "say what it is: a name, a size, the number of ..."


def test_phrases_are_looked_for_where_they_stood(tmp_path: Path) -> None:
    """The list finds each of its own phrases, whatever line break is in it."""
    for phrase in ("a size that only a run\n knows", "for ever", "what counts: What counts."):
        assert any(re.search(p.replace(" ", r"\s+"), phrase) for p in BANNED)


PARALLEL = re.compile(r"edgeinfer\.convert\.lower\.(coreai|coreml|tflite|tvm)\.")
"""Formats with the same parts, whose names are the same: what several of them have counts once."""


def test_a_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        room = "formats" if PARALLEL.match(module.name) else module.name
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(room)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
