"""The format that regions are written in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from edgeinfer import profiles
from edgeinfer.convert.lower import Lowered, LowerOptions, target_for
from edgeinfer.convert.lower.regions import target
from edgeinfer.convert.lower.regions.outcome import Figures, RegionOutcome, RegionRequest, Trial
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import CrashedError, NotAvailableError, UsageError
from tests.convert.lower.regions.made import MACHINE, model

TEXT = "(float[1,4] x) => (float[1,4] y) <float[1,4] a> { a = Exp(x)  y = Sqrt(a) }"
FEEDS = {"x": np.asfortranarray(np.ones((1, 4), np.float32))}
GOOD = Figures(100.0, 50.0, 100.0, 50.0, 2.0, 1.9, 1.9, 0.01, 21)


def _lower(folder: Path, **options: object) -> Lowered:
    profile = replace(profiles.load("cpu"), machine=MACHINE)
    made = normalise(model(TEXT)).model
    return target_for("onnx_tvm").lower(made, profile, LowerOptions(**options), folder)  # type: ignore[arg-type]


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [
        Trial("Region0", ("a", "y"), kept=True, alone=GOOD),
        Trial("Region1", ("b",), reason="it cannot be written: for a reason"),
    ]
    said: list[str] = []

    def raced(order: RegionRequest, tell: Callable[[str], None] | None) -> RegionOutcome:
        assert order.machine == MACHINE
        assert order.feeds["x"].flags.c_contiguous
        assert tell is not None
        tell("something")
        ir.save(ir.load(order.plain), order.folder / "model.onnx")
        (order.folder / "regions.so").write_bytes(b"code")
        return RegionOutcome(trials, GOOD, left=2, notes=("as tuned",))

    monkeypatch.setattr(target, "_raced", raced)
    made = _lower(tmp_path, samples=(FEEDS,), tell=said.append)
    assert said == ["something"]
    assert made.format == "onnx_tvm"
    assert [f.name for f in made.files] == ["model.onnx", "regions.so", "regions.json"]
    assert made.precision == "fp32"
    assert made.constraints == {"os": "linux", "arch": "x86_64", "device": "cpu"}
    assert [e.backend for e in made.engines] == ["onnxruntime"]
    assert ">=1.17" in made.engines[0].version
    told = json.loads(made.files[2].read_text("utf-8"))
    assert [t["name"] for t in told["trials"]] == ["Region0", "Region1"]
    assert told["final"]["rounds"] == 21
    text = "\n".join(made.notes)
    assert "Region0 is code in the place of a, y: the part alone 2.00 times as fast" in text
    assert "b: it cannot be written: for a reason" in text
    assert "2 parts were not tried, for want of time (--regions-time)" in text
    assert made.notes[-1] == "as tuned"


def test_nothing_is_written_where_nothing_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "_raced", lambda *_: RegionOutcome())
    with pytest.raises(NotAvailableError, match="no part of the model promised to be faster"):
        _lower(tmp_path, samples=(FEEDS,))
    assert list(tmp_path.iterdir()) == []


def test_inputs_to_time_with_are_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no inputs to time the model with"):
        _lower(tmp_path)


def test_a_race_that_ends_its_process_is_told(tmp_path: Path) -> None:
    order = RegionRequest(tmp_path / "missing.onnx", tmp_path, MACHINE, (), {}, 1.0)
    with pytest.raises(CrashedError, match="look for regions"):
        target._raced(order, None)
