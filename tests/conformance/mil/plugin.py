"""pytest plugin: coremltools' own tests of its operations, with the evaluator for Core ML.

Loaded by ``-p`` in the processes that ``test_suite.py`` starts. The tests ask whether they run on a
Mac before they compare numbers; here they are told that they do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.coreml_reference.stand_in import ModelProxy, answering

_stack = ExitStack()
_predictions = 0


class Counted(ModelProxy):
    """Counts predictions, so that a test which compares nothing is not taken for a pass."""

    def predict(self, data: Any, state: Any = None) -> dict[str, Any]:
        global _predictions
        _predictions += 1
        return super().predict(data, state)


def pytest_configure(config: pytest.Config) -> None:
    _stack.enter_context(answering(Counted))
    from coremltools.converters.mil import testing_utils

    testing_utils._IS_MACOS = True


def pytest_unconfigure(config: pytest.Config) -> None:
    _stack.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep this shard's part, every ``of``-th test from ``shard`` on, without those left out."""
    shard, of = (int(n) for n in os.environ["MIL_SHARD"].split("/"))
    left_out = os.environ["MIL_LEFT_OUT"]
    items[:] = [i for i in items[shard::of] if not re.search(left_out, i.nodeid)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    np.random.seed(0)  # noqa: NPY002 (the suite draws from the global generator)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    global _predictions
    _predictions = 0
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    message = ""
    if report.failed:
        message = str(getattr(report.longrepr, "reprcrash", report.longrepr))[-400:]
    outcome: str = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    line = {
        "test": report.nodeid.split("ops/tests/")[-1],
        "outcome": outcome,
        "predictions": _predictions,
        "seconds": round(report.duration, 3),
        "message": message,
    }
    with open(os.environ["MIL_RESULTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
