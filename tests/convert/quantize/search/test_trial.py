"""What candidates are run on, and under which name measurements are remembered."""

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.base import Backend, Device, Probe
from edgeinfer.convert.quantize.search import trial
from edgeinfer.convert.quantize.search.trial import Samples, affordable
from edgeinfer.errors import NotAvailableError


def samples(count: int, labels: int) -> Samples:
    feeds = [{"x": np.full(1, i)} for i in range(count)]
    return Samples([*feeds], list(range(labels)), [{"y": np.full(1, i)} for i in range(count)])


def test_fewer_samples_are_spread_and_keep_their_labels() -> None:
    found = samples(100, 100).fewer(4)
    assert [int(f["x"][0]) for f in found.feeds] == [0, 25, 50, 75]
    assert found.labels == [0, 25, 50, 75]
    assert [int(e["y"][0]) for e in found.expected] == [0, 25, 50, 75]
    assert samples(3, 0).fewer(4).feeds == samples(3, 0).feeds
    # Several rows a run: which label belongs to which run is not known here.
    assert len(samples(100, 800).fewer(4).feeds) == 100


def test_a_handful_compares_layers_by_their_errors() -> None:
    found = samples(100, 100).few()
    assert len(found.feeds) == trial.FEW
    assert found.labels == []


def test_other_labels_have_another_fingerprint() -> None:
    one, other = samples(4, 4), samples(4, 4)
    assert one.digest == other.digest
    other.labels[2] = np.array([1.0, 2.0])
    assert one.digest != other.digest


def test_the_first_engine_that_is_here_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def __init__(self, name: str, version: str | None) -> None:
            self.name, self._version = name, version

        def probe(self) -> Probe:
            reason = "" if self._version else "not here"
            # The first has its library, and no device.
            units = (Device("cpu", "any"),) if self.name != "no device" and self._version else ()
            return Probe(self.name, self._version, units, reason)

    there: Mapping[str, Engine] = {
        n: Engine(n, v) for n, v in (("no device", "1.0"), ("a", None), ("b", "1.0"), ("c", "2.0"))
    }
    monkeypatch.setattr(registry, "get", there.__getitem__)
    found: Backend = trial.present(["no device", "a", "b", "c"])
    assert found.name == "b"
    with pytest.raises(NotAvailableError, match="no engine to measure candidates on: a: not here"):
        trial.present(["a"])
    with pytest.raises(NotAvailableError, match="no device: no device for it is here"):
        trial.present(["no device"])


@pytest.mark.parametrize(
    ("once_ms", "runs"),
    [(0.0, 512), (15.0, 512), (16.0, 256), (100.0, 128), (250.0, 128), (400.0, 64), (1e9, 32)],
)
def test_slow_runs_are_fewer(once_ms: float, runs: int) -> None:
    assert affordable(once_ms) == runs


def test_the_number_of_samples_is_that_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([0.5, 9000.0, 0.4, 800.0, 810.0, 820.0])
    monkeypatch.setattr(trial, "_once", lambda *_: next(took))
    monkeypatch.setattr(trial.CandidateTrials, "_load", lambda *_: (None, None))
    trials = trial.CandidateTrials.__new__(trial.CandidateTrials)
    trials.quantizer = SimpleNamespace(model=None)  # type: ignore[assignment]
    # One slow run of a quick engine says nothing.
    assert len(trials.in_time(samples(200, 200)).feeds) == 200
    assert len(trials.in_time(samples(200, 200)).feeds) == 32
    # Ranges are compared on as many as take two seconds, and a handful at least.
    assert len(trials.some(samples(200, 200)).feeds) == 8
    trials.once_ms = 0.4
    assert len(trials.some(samples(200, 200)).feeds) == 64
    # Few are never made fewer, and not timed.
    assert len(trials.in_time(samples(20, 20)).feeds) == 20
