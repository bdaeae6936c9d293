"""Sessions whose engine crashes: an exception, the same engine again, or the next one, said."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.backends import registry
from edgeinfer.backends.testing import faults
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import ClosedError, CrashedError, NotAvailableError, UsageError
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import TensorSpec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

X, Y = TensorSpec("x", "float32", (4,)), TensorSpec("x_out", "float32", (4,))
ONES = np.ones(4, np.float32)
Load = Callable[..., edgeinfer.Session]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a bundle whose engines do what its file says, in the order given."""
    folder = tmp_path / "plugin"
    faults.install(folder)
    monkeypatch.syspath_prepend(str(folder))
    registry._load.cache_clear()

    def make(does: str, *engines: str, **options: object) -> edgeinfer.Session:
        path = tmp_path / "m.edge"
        with BundleWriter(path, overwrite=True) as writer:
            file = writer.add_bytes("variants/v/m.onnx", does.encode())
            required = tuple(EngineRequirement(name) for name in engines)
            variant = Variant("v", "cpu", "onnx", "fp32", (file,), required)
            vector = writer.add_vector((X,), (Y,), {"x": ONES}, {"x_out": ONES * 2}, "user")
            source = SourceRecord("onnx", "f", "0" * 64)
            writer.finish(Manifest("m", (X,), (Y,), (variant,), (vector,), source))
        with ProfileDB(tmp_path / "history.sqlite") as history:
            return edgeinfer.load(path, history=history, **options)  # type: ignore[arg-type]

    return make


def test_a_crash_is_an_exception_and_the_next_run_works(load: Load) -> None:
    with load("first:segv", "faulty", isolate=True, measure=False) as session:
        assert session.report().isolated
        with pytest.raises(CrashedError, match="SIGSEGV"):
            session(ONES)
        np.testing.assert_array_equal(session(ONES), ONES * 2)


def test_a_hang_is_an_exception(load: Load) -> None:
    with (
        load("run:hang", "faulty", isolate=True, run_timeout_s=0.3, measure=False) as session,
        pytest.raises(CrashedError, match=r"no answer for 0\.3 s"),
    ):
        session(ONES)


def test_a_crash_while_candidates_are_checked_rejects_the_candidate(load: Load) -> None:
    with load("run:abort", "faulty", "steady", isolate=True) as session:
        report = session.report()
        assert report.backend == "steady"
        (reason,) = [r.reason for r in report.rejected if r.backend == "faulty"]
        assert "SIGABRT" in reason
        np.testing.assert_array_equal(session(ONES), ONES * 2)


def test_nothing_left_is_said(load: Load) -> None:
    with pytest.raises(NotAvailableError, match="SIGABRT"):
        load("run:abort", "faulty", isolate=True)


def test_the_next_candidate_takes_over_and_that_is_said(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    with load("run:segv", "faulty", "steady", on_crash="next", measure=False) as session:
        assert session.report().backend == "faulty"
        with pytest.raises(CrashedError):
            session(ONES)
        with caplog.at_level(logging.WARNING, logger="edgeinfer"):
            np.testing.assert_array_equal(session(ONES), ONES * 2)
        report = session.report()
    assert report.backend == "steady"
    said = [note for note in report.notes if "took over because" in note]
    assert len(said) == 1
    assert said[0].startswith("v on steady")
    assert "SIGSEGV" in said[0]
    assert said[0] in caplog.messages


def test_bound_runs_go_over_too(load: Load) -> None:
    with load("run:segv", "faulty", "steady", on_crash="next", measure=False) as session:
        bound = session.bind({"x": ONES})
        with pytest.raises(CrashedError):
            bound()
        np.testing.assert_array_equal(bound()["x_out"], ONES * 2)
        bound.inputs["x"][...] = 3
        np.testing.assert_array_equal(bound()["x_out"], np.full(4, 6))
        assert session.report().backend == "steady"


def test_wrong_numbers_never_take_over(load: Load) -> None:
    with load("run:segv", "faulty", "wrong", on_crash="next", measure=False) as session:
        for _ in range(3):
            with pytest.raises(CrashedError):
                session(ONES)
        assert session.report().backend == "faulty"


def test_single_crashes_between_good_runs_do_not_hand_over(load: Load) -> None:
    with load("first:kill", "faulty", "steady", on_crash="next", measure=False) as session:
        with pytest.raises(CrashedError):
            session(ONES)
        session(ONES)
        assert session.report().backend == "faulty"


def test_closed_is_closed(load: Load) -> None:
    session = load("ok", "faulty", "steady", on_crash="next", measure=False)
    session.close()
    with pytest.raises(ClosedError):
        session(ONES)


@pytest.mark.parametrize(
    "options",
    [{"on_crash": "ignore"}, {"run_timeout_s": 1.0}, {"isolate": True, "run_timeout_s": 0.0}],
)
def test_options_that_contradict_themselves(load: Load, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        load("ok", "steady", **options)
