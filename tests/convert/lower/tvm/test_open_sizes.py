"""Sizes that a run gives and that there are not: they end it, and no later one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from edgeinfer.errors import RunError
from tests.convert.lower.forms import Feeds, f, i, one
from tests.convert.lower.test_open_sizes import FORMS
from tests.convert.lower.tvm.run import load

HEAD = '<ir_version: 10, opset_import: ["": 21]> g '

REFUSED: dict[str, list[Feeds]] = {
    "best": [{"x": f(3, 6), "k": i(k)} for k in (7, -1)],
    "filled": [{"s": i(-1, 3)}],
    "reshape": [{"x": f(2, 6), "s": s} for s in (i(5, -1), i(4, 4), i(-1, -1))],
    "split": [{"x": f(3, 6), "s": s} for s in (i(2, 5), i(7, -1))],
    "broadcast": [{"x": f(a, 3), "z": f(4, 3)} for a in (3, 0)],
    "broadcast to a known size": [{"x": f(a, 3), "z": f(5, 3)} for a in (4, 0, 6)],
    "products": [{"x": f(5, 3), "z": f(4, 2)}],
    "pad by edges": [{"x": f(0, 3)}],
    "range": [{"a": one(1), "b": one(9), "c": one(0)}],
    "expand": [{"x": f(1, 3), "s": i(4, 2)}],
    "slice with steps": [{"x": f(5, 6), "s": i(-1, 0), "e": i(0, 9), "t": i(0, 2)}],
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", REFUSED)
def test_sizes_that_there_are_not_end_the_run_and_no_later_one(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    ready, usual = load(onnx.parser.parse_model(HEAD + form.text), tmp_path), form.feeds[0]
    before = {k: np.array(v) for k, v in ready.run(usual).items()}
    for feeds in REFUSED[name]:
        with pytest.raises(RunError, match=r"impossible size|Mismatched"):
            ready.run(feeds)
    for key, value in ready.run(usual).items():
        np.testing.assert_array_equal(value, before[key])
    ready.close()
