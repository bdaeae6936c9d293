"""coremltools' own tests of its operations, written against Macs, answered by the evaluator.

``make test-mil`` runs all of them, in shards, several at a time, and prints what came out;
``pytest -k "shard3-"`` runs one. ``known.toml`` lists the tests that fail, each with its reason; an
entry that no longer fails has to go.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("coremltools")
pytest.importorskip("scipy", reason="the suite needs scipy; pip install scipy")
pytest.importorskip("torch", reason="the suite needs PyTorch")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

HERE = Path(__file__).parent
SHARDS = 30
LEAST = 0.99
SHARD_SECONDS = 5000


@dataclass
class Tally:
    """What the shards that ran so far gave."""

    outcomes: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    shards: set[int] = field(default_factory=set)
    entries: Counter[str] = field(default_factory=Counter)


TALLY = Tally()


@dataclass(frozen=True)
class Result:
    test: str
    outcome: str
    predictions: int
    message: str


def listed(kind: str) -> dict[str, str]:
    """Return reasons by regular expression."""
    with (HERE / "known.toml").open("rb") as file:
        return {entry["tests"]: entry["reason"] for entry in tomllib.load(file)[kind]}


def known() -> dict[str, str]:
    return listed("known")


def suite() -> Path:
    found = importlib.util.find_spec("coremltools")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0], "converters/mil/mil/ops/tests")


def run_shard(shard: int, folder: Path) -> list[Result]:
    results = folder / "results.jsonl"
    command = [
        *(sys.executable, "-m", "pytest", str(suite()), "-q", "-p", "plugin", "-o", "addopts="),
        *("-p", "no:cacheprovider", f"--rootdir={folder}", f"--basetemp={folder / 'tmp'}"),
        *("-W", "ignore", "--tb=line", "-c", os.devnull),
    ]
    roots = [str(HERE), *(p for p in sys.path if p)]
    environment = os.environ | {
        "MIL_SHARD": f"{shard}/{SHARDS}",
        "MIL_RESULTS": str(results),
        "MIL_LEFT_OUT": "|".join(listed("left_out")),
        "PYMIL_TEST_TARGETS": "mlprogram",
        "PYTHONPATH": os.pathsep.join(roots),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SHARD_SECONDS,
        preexec_fn=lambda: os.nice(10),
        check=False,
    )
    # 0: all passed, 1: some failed; anything else means that the shard did not run to its end.
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return [read(line) for line in results.read_text(encoding="utf-8").splitlines()]


def read(line: str) -> Result:
    fields = json.loads(line)
    return Result(fields["test"], fields["outcome"], fields["predictions"], fields["message"])


def surprises(results: Iterable[Result]) -> Iterator[str]:
    """Count results in; give a line for what ``known.toml`` says otherwise."""
    failing = known()
    for result in results:
        TALLY.outcomes[result.outcome] += 1
        TALLY.compared += result.outcome == "passed" and result.predictions > 0
        entry = next((e for e in failing if re.search(e, result.test)), None)
        if entry is not None:
            TALLY.entries[entry] += 1
        if result.outcome == "failed" and entry is None:
            yield f"{result.test}: {result.message}"
        if result.outcome == "passed" and entry is not None:
            yield f"{result.test} passes: take it off known.toml"


def share() -> float:
    """Of the tests that ask for a prediction, how many pass."""
    return TALLY.compared / max(1, TALLY.compared + TALLY.outcomes["failed"])


@pytest.mark.parametrize("shard", range(SHARDS), ids=lambda n: f"shard{n}-")
def test_shard(shard: int, tmp_path: Path) -> None:
    results = run_shard(shard, tmp_path)
    assert len(results) > 100
    TALLY.shards.add(shard)
    found = list(surprises(results))
    assert not found, "\n".join(found)


def test_the_evaluator_passes_99_percent() -> None:
    """Of the tests that ask for a prediction, over the shards that ran."""
    if not TALLY.shards:
        pytest.skip("no shard ran")
    assert share() >= LEAST
    if len(TALLY.shards) == SHARDS:
        assert set(TALLY.entries) == set(known()), "entries of known.toml that match no test"


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="shards at a time")
    parser.add_argument("--shards", type=int, default=SHARDS, help="only the first so many")
    given = parser.parse_args()
    started = time.monotonic()

    def results(shard: int) -> list[Result]:
        with tempfile.TemporaryDirectory() as folder:
            return run_shard(shard, Path(folder))

    strange: list[str] = []
    with ThreadPoolExecutor(given.workers) as pool:
        for shard, found in enumerate(pool.map(results, range(given.shards))):
            TALLY.shards.add(shard)
            strange += surprises(found)
            print(f"shard {shard}: {len(found)} tests, {dict(TALLY.outcomes)}", flush=True)  # noqa: T201
    seconds, total = time.monotonic() - started, sum(TALLY.outcomes.values())
    print(f"{given.shards} of {SHARDS} shards, {total} tests, {seconds:.0f} s")  # noqa: T201
    print(f"{TALLY.compared} agree in what they predict, {100 * share():.2f} %")  # noqa: T201
    for entry, count in TALLY.entries.items():
        print(f"{count} failing as listed: {known()[entry]}")  # noqa: T201
    if given.shards == SHARDS:
        strange += [f"matches no test: {e}" for e in known().keys() - TALLY.entries.keys()]
    print("\n".join(["not as listed:", *strange] if strange else ["all as listed"]))  # noqa: T201
    return bool(strange) or share() < LEAST


if __name__ == "__main__":
    sys.exit(_main())
