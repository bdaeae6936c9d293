"""ONNX node cases give the same bits through a backend as through its engine alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT, WORKER = Path(__file__).parents[2], "tests.conformance.protocol_worker"

NO_ARRAY = r"refused: .*(has no array|which it refuses)$"
"""Sequences, optionals, 4- and 8-bit floats: nothing that an edgeinfer tensor can be."""

EXCEPTIONS = {
    "onnxruntime": {
        NO_ARRAY: r".*",
        # The plain call takes no bfloat16 arrays.
        r"more": r".*(BFLOAT16|bfloat16|bf16)",
    },
    "openvino": {
        NO_ARRAY: r".*",
        # The plain call takes no bfloat16, and feeds by a name that compiling has merged away.
        r"more": r".*(BFLOAT16|bfloat16|bf16)|test_(max|min|sum)_one_input",
    },
    "reference": {NO_ARRAY: r".*"},
}
"""By backend: verdict to the names of the cases that may have it; the rest must be the same."""

Verdicts = dict[str, dict[str, str]]


def verdicts(first: int, step: int, *backends: str) -> Verdicts:
    """Run the worker and return its verdict on each case, by backend."""
    command = [sys.executable, "-m", WORKER, str(first), str(step), *backends]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found: Verdicts = {backend: {} for backend in backends}
    for line in done.stdout.splitlines():
        record = json.loads(line)
        found[record["backend"]][record["case"]] = record["verdict"]
    assert done.returncode == 0, (done.stderr[-2000:], done.stdout.splitlines()[-1:])
    return found


@pytest.fixture(scope="module", params=[120, pytest.param(20, marks=pytest.mark.sweep)])
def sample(request: pytest.FixtureRequest) -> Verdicts:
    """Give the verdicts on one case of so many."""
    return verdicts(7, request.param, *EXCEPTIONS)


def unexpected(backend: str, found: dict[str, str]) -> dict[str, str]:
    """Return the verdicts that no exception allows."""
    allowed = EXCEPTIONS[backend].items()
    return {
        case: verdict
        for case, verdict in found.items()
        if verdict not in ("same", "neither", "engine")
        and not any(re.match(kind, verdict) and re.match(name, case) for kind, name in allowed)
    }


@pytest.mark.parametrize("backend", EXCEPTIONS)
def test_a_sample(backend: str, sample: Verdicts) -> None:
    found = sample[backend]
    assert unexpected(backend, found) == {}
    same = sum(verdict == "same" for verdict in found.values())
    assert same > 0.6 * len(found) > 9
    assert len(found) < 20 or same > 0.7 * len(found) > 50


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("backend", EXCEPTIONS)
def test_every_case(backend: str) -> None:
    assert unexpected(backend, verdicts(0, 1, backend)[backend]) == {}
