"""What a vector tells the device about how it was judged when the bundle was made."""

import math
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.bundle.manifest import FileRecord, VectorRecord, spread_of
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.metrics import SLACK, OutputMetrics, budget_for
from edgeinfer.types import TensorSpec

FILE = FileRecord("vectors/0.npz", "0" * 64, 1)
BASE = budget_for("fp32")


def test_without_a_spread_the_budget_stays() -> None:
    assert VectorRecord(FILE, "user").budget(BASE, "y") is BASE


def test_a_spread_widens_the_budget_of_its_output_only() -> None:
    record = VectorRecord(FILE, "user", {"y": {"max_rel": 0.01, "sqnr_db": 60.0}})
    assert record.budget(BASE, "y").max_rel == pytest.approx(SLACK * 0.01)
    assert record.budget(BASE, "y").sqnr_db == pytest.approx(60.0 - 20.0 * math.log10(SLACK))
    assert record.budget(BASE, "y").channel_sqnr_db == BASE.channel_sqnr_db
    assert record.budget(BASE, "other") is BASE


def test_figures_of_a_newer_converter_are_ignored() -> None:
    record = VectorRecord(FILE, "user", {"y": {"max_rel": 0.01, "entropy": 3.0}})
    assert record.budget(BASE, "y").max_rel == pytest.approx(SLACK * 0.01)


def test_extremes_are_judged_at_full_precision_only() -> None:
    extreme = VectorRecord(FILE, "synthetic:large", edge=True)
    assert extreme.judged_at("fp32")
    assert not extreme.judged_at("fp16")
    assert VectorRecord(FILE, "user").judged_at("fp16")


def test_infinite_figures_are_not_recorded() -> None:
    figures = spread_of(OutputMetrics(4, max_abs=0.5, max_rel=0.25, sqnr_db=12.0))
    assert figures == {"max_abs": 0.5, "max_rel": 0.25, "sqnr_db": 12.0, "cosine": 1.0}
    assert all(math.isfinite(v) for v in figures.values())


def test_the_writer_records_it_and_leaves_exact_outputs_out(tmp_path: Path) -> None:
    specs = (TensorSpec("y", "float32", (1,)), TensorSpec("z", "float32", (1,)))
    one = {"y": np.ones(1, np.float32), "z": np.ones(1, np.float32)}
    spread = {"y": OutputMetrics(1, max_abs=0.5, max_rel=0.25, sqnr_db=12.0), "z": OutputMetrics(1)}
    with BundleWriter(tmp_path / "m.edge") as writer:
        record = writer.add_vector((), specs, {}, one, "user", spread=spread, edge=True)
    assert set(record.spread) == {"y"}
    assert record.edge
