"""Every ONNX node case and every golden case through passes, target and engine.

What the plain engine gets right stays right; of the rest nothing is wrong: right value or refusal.
Exceptions are data with a reason, and one that is no longer needed fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import processor

HERE = Path(__file__).parent
ROOT, WORKER = HERE.parents[1], "tests.conformance.node_worker"
TARGETS = ("onnxruntime", "openvino")
SHARDS = 4
SAMPLE = 24

Results = dict[str, dict[str, str]]


def run_cases(target: str, source: str, first: int, step: int) -> Results:
    """Run a share of the cases in child processes; an abort costs one case."""
    results: Results = {}
    done = 0
    while True:
        command = [sys.executable, "-m", WORKER, target, source, *map(str, (first, step, done))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        child = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
        )
        current: dict[str, str] = {}
        for line in _json_lines(child.stdout):
            if "start" in line:
                current = {"name": line["start"]}
                done += 1
            current |= line
            if "ours" in line:
                results[current["name"]] = current
                current = {}
        if child.returncode == 0:
            return results
        if not current:
            raise RuntimeError(f"{command}: {child.stderr[-2000:]}")
        crash = f"crash: exit {child.returncode}"
        results[current["name"]] = {"plain": crash, **current, "ours": crash}


def _json_lines(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def violation(result: dict[str, str]) -> str:
    """Return what a case does that it must not, e.g. ``wrong``; empty if nothing."""
    ours, plain = (result[k].split(":")[0] for k in ("ours", "plain"))
    if ours == "ok" or (ours == "refused" and plain != "ok"):
        return ""
    return ours


@dataclass(frozen=True)
class Accepted:
    """An exception: the outcome, how far off a wrong value may be, and whether it may be right."""

    outcome: str
    within: float | None = None
    or_right: bool = False

    def covers(self, found: str, text: str) -> bool:
        if found != self.outcome or self.within is None:
            return found == self.outcome or (self.or_right and text == "ok")
        error = re.search(r"values differ by up to ([\d.e+-]+)$", text)
        return error is not None and float(error[1]) <= self.within


NOTHING = Accepted("")


def exceptions(target: str, *, anywhere: bool = False) -> dict[str, Accepted]:
    """Return what is accepted on this processor, or on any, by case."""
    entries = tomllib.loads((HERE / "lowering.toml").read_text("utf-8"))["exception"]
    found: dict[str, Accepted] = {}
    for entry in entries:
        assert entry["reason"], entry
        concerns = target in entry["targets"]
        if concerns and not anywhere and (where := entry.get("where")):
            concerns = getattr(processor, where)()
        for name in entry["cases"] if concerns else ():
            assert name not in found, f"{name}: listed twice"
            found[name] = Accepted(
                entry["outcome"], entry.get("within"), entry.get("or_right", False)
            )
    return found


def judge(target: str, results: Results) -> list[str]:
    """Return a line for every case that is neither right nor excepted."""
    accepted = exceptions(target)
    lines = []
    for name, result in results.items():
        allowed = accepted.get(name, NOTHING)
        if not allowed.covers(violation(result), result["ours"]):
            wanted = f"excepted as {allowed}" if allowed.outcome else "not excepted"
            lines.append(f"{name} ({wanted}): plain {result['plain']}; ours {result['ours']}")
    return lines


def needs(target: str) -> None:
    if importlib.util.find_spec(target) is None:
        pytest.skip(f"{target} is not installed")


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_sample_of_the_node_suite(target: str) -> None:
    needs(target)
    results = run_cases(target, "suite", 0, SAMPLE)
    assert len(results) > 70
    assert judge(target, results) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("target", TARGETS)
def test_whole_node_suite(target: str, shard: int) -> None:
    needs(target)
    results = run_cases(target, "suite", shard, SHARDS)
    assert len(results) > 400
    assert judge(target, results) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("step", "count"), [(4, 19), pytest.param(1, 73, marks=pytest.mark.sweep)])
def test_golden_cases(target: str, step: int, count: int) -> None:
    needs(target)
    results = run_cases(target, "golden", 0, step)
    assert len(results) == count
    assert judge(target, results) == []


def test_exceptions_name_cases_that_exist() -> None:
    from tests.conformance.node_cases import golden, suite

    known = {case[0] for case in (*suite(), *golden())}
    for target in TARGETS:
        assert set(exceptions(target)) <= known


@pytest.mark.parametrize(
    ("ours", "within", "covered"),
    [
        ("wrong: y: values differ by up to 0.0039", 0.008, True),
        ("wrong: y: values differ by up to 0.0039", 0.003, False),
        ("wrong: y: NaN or infinity in one of the two only, 3 times", 0.008, False),
        ("wrong: y: NaN or infinity in one of the two only, 3 times", None, True),
        ("refused: by the engine: no", 0.008, False),
        ("ok", 0.008, False),
    ],
)
def test_exception_covers_no_more_than_it_says(
    ours: str, within: float | None, covered: bool
) -> None:
    found = violation({"plain": "wrong: y", "ours": ours})
    assert Accepted("wrong", within).covers(found, ours) is covered
    may_be_right = Accepted("wrong", within, or_right=True)
    assert may_be_right.covers(found, ours) is (covered or ours == "ok")


@pytest.mark.parametrize(
    ("plain", "ours", "found"),
    [
        ("ok", "ok", ""),
        ("wrong: y", "ok", ""),
        ("refused: no", "refused: no", ""),
        ("wrong: y", "refused: no", ""),
        ("ok", "refused: no", "refused"),
        ("refused: no", "wrong: y", "wrong"),
        ("crash: exit -11", "crash: exit -11", "crash"),
        ("refused: no", "error: TypeError", "error"),
    ],
)
def test_right_or_refused_and_never_wrong(plain: str, ours: str, found: str) -> None:
    assert violation({"plain": plain, "ours": ours}) == found
