"""Hostile numbers in every place that takes an integer, of every operator."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import onnx
import pytest

from tests.fuzz import hostile
from tests.fuzz.readers import Reader, command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")

EVERY = 421
"""Of so many forms `make test` takes one; so it meets all numbers and most operators in turn."""


def test_places_are_of_most_operators() -> None:
    places = hostile.places()
    operators = {place.model.graph.node[0].op_type for place in places}
    assert len(operators) > 120
    assert len(places) > 1200
    split = [p for p in places if p.where == "num_outputs"]
    assert split
    model = split[0].model_with(2**63 - 1)
    assert [a.i for a in model.graph.node[0].attribute if a.name == "num_outputs"] == [2**63 - 1]


def test_a_mutation_puts_hostile_numbers_there() -> None:
    raw = next(s for s in hostile.seeds() if b"Conv" in s)
    made = [hostile.in_numbers(raw, random.Random(seed)) for seed in range(20)]
    assert made == [hostile.in_numbers(raw, random.Random(seed)) for seed in range(20)]
    assert len(set(made)) > 10
    assert all(onnx.ModelProto.FromString(each).graph.node for each in made)


@pytest.mark.parametrize(
    ("every", "way"),
    [
        (EVERY, "check"),
        pytest.param(8 * EVERY, "convert", marks=pytest.mark.sweep),
        pytest.param(1, "check", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
        pytest.param(4, "convert", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
def test_none_ends_a_process_or_takes_all_there_is(every: int, way: str, tmp_path: Path) -> None:
    fuzz = pytest.importorskip("tests.fuzz.__main__")
    targets = ["-t", "onnxruntime", "-t", "rpi5"]
    words = ["check", "{}", *targets]
    if way == "convert":
        words = ["convert", "{}", *targets, "-o", f"{tmp_path}/m.edge", "--overwrite", "-q"]
    reader = Reader("numbers", ".onnx", [], [], [command(*words)])
    path, found = tmp_path / "m.onnx", list[str]()
    forms = [form for number, form in enumerate(hostile.forms()) if not number % every]
    path.write_bytes(forms[0][1].SerializeToString())
    reader.acts[0](path)
    at = 0
    while at < len(forms):
        batch = [model.SerializeToString() for _, model in forms[at : at + reader.batch]]
        ended, problem = fuzz.run_apart(reader, path, batch)
        at += len(ended)
        if problem:
            found.append(f"{forms[at - 1][0]}: {problem}")
    assert found == []
