import json
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from benchmarks.tiny import MLP
from benchmarks.tiny import bundle as tiny
from edgeinfer.errors import InputError, UsageError
from edgeinfer.runtime.telemetry import Recorder

X = np.arange(6, dtype=np.float32).reshape(2, 3)
K = np.array([7, 8])


def _fed(recorder: Recorder, nanoseconds: list[int]) -> None:
    for each in nanoseconds:
        recorder.took(each)


def test_percentiles_are_right_to_half_a_bucket() -> None:
    rng = np.random.default_rng(0)
    times = np.exp(rng.normal(np.log(2e6), 1.5, 5000)).astype(int)
    recorder = Recorder({})
    _fed(recorder, times.tolist())
    found = recorder.stats()
    assert found.runs == 5000
    assert found.mean_ms == pytest.approx(times.mean() / 1e6)
    assert (found.min_ms, found.max_ms) == (times.min() / 1e6, times.max() / 1e6)
    for share, ms in ((50, found.p50_ms), (95, found.p95_ms), (99, found.p99_ms)):
        assert ms == pytest.approx(np.percentile(times, share) / 1e6, rel=0.045)


def test_equal_times_have_equal_percentiles() -> None:
    recorder = Recorder({})
    _fed(recorder, [1234567] * 3)
    found = recorder.stats()
    assert found.p50_ms == found.p99_ms == found.min_ms == found.max_ms == 1.234567


def test_nothing_counted_yet() -> None:
    found = Recorder({}).stats()
    assert (found.runs, found.p50_ms, found.failures) == (0, None, {})
    assert str(found).startswith("0 runs in ")


def test_zero_and_huge_times_have_a_bucket() -> None:
    recorder = Recorder({})
    _fed(recorder, [0, 2**62])
    assert recorder.stats().max_ms == 2**62 / 1e6


def test_reset_begins_anew() -> None:
    recorder = Recorder({})
    _fed(recorder, [5000])
    assert recorder.stats(reset=True).runs == 1
    assert recorder.stats().runs == 0


def test_a_session_counts_runs_bound_runs_and_failures(
    fakes: Any, make_bundle: Callable[..., Path]
) -> None:
    fakes.add("fake")
    with edgeinfer.load(make_bundle("fake"), stats=True) as session:
        session(X, K)
        session.run({"x": X, "k": K})
        bound = session.bind({"x": X, "k": K})
        bound()
        with pytest.raises(InputError):
            session.run({"x": X})
        found = session.stats()
    assert (found.runs, found.failures) == (3, {"InputError": 1})
    assert found.labels["backend"] == "fake"
    assert "1 InputError" in str(found)


def test_a_session_that_does_not_count_says_how_to(
    fakes: Any, make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.add("fake")
    path = make_bundle("fake")
    monkeypatch.delenv("EDGEINFER_STATS", raising=False)
    with edgeinfer.load(path) as session, pytest.raises(UsageError, match="stats=True"):
        session.stats()
    monkeypatch.setenv("EDGEINFER_STATS", "1")
    with edgeinfer.load(path) as session:
        assert session.stats().runs == 0
    with edgeinfer.load(path, stats=False) as session, pytest.raises(UsageError):
        session.stats()
    monkeypatch.setenv("EDGEINFER_STATS", "yes")
    with pytest.raises(UsageError, match="expected 0 or 1"):
        edgeinfer.load(path)


def test_threads_lose_no_run() -> None:
    recorder = Recorder({})
    call = recorder.watch(lambda: time.sleep(0))
    threads = [threading.Thread(target=lambda: [call() for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.stats().runs == 2000


def test_runs_are_told_to_the_meter_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []

    class Instrument:
        def __init__(self, name: str) -> None:
            self.name = name

        def record(self, value: float, attributes: dict[str, str]) -> None:
            told.append((self.name, value, attributes))

        add = record

    class Meter:
        def create_histogram(self, name: str, **_: str) -> Instrument:
            return Instrument(name)

        create_counter = create_histogram

    api = types.ModuleType("opentelemetry")
    api.metrics = types.SimpleNamespace(get_meter=lambda _: Meter())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry", api)
    recorder = Recorder({"model": "m"})
    recorder.watch(lambda: None)()
    with pytest.raises(ZeroDivisionError):
        recorder.watch(lambda: 1 / 0)()
    (first, seconds, attributes), failure = told
    assert first == "edgeinfer.run.duration"
    assert 0 < seconds < 1
    assert attributes == {"edgeinfer.model": "m"}
    assert failure == (
        "edgeinfer.run.failures",
        1,
        {"edgeinfer.model": "m", "error.type": "ZeroDivisionError"},
    )


def test_opentelemetry_itself_exports_what_a_session_did(tmp_path: Path) -> None:
    """The real API and SDK, in a process of its own: a provider is set once for all."""
    pytest.importorskip("opentelemetry.sdk")
    path = tiny(MLP, tmp_path / "mlp.edge", {"x": np.ones((1, 16), np.float32)})

    def told(counts: str) -> dict[str, list[Any]]:
        done = subprocess.run(
            [sys.executable, "-c", EXPORTED, str(path), counts],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, list[Any]] = json.loads(done.stdout)
        return found

    assert told("off") == {}
    found = told("on")
    labels = {
        "edgeinfer.model": "mlp",
        "edgeinfer.variant": "cpu-onnx-fp32",
        "edgeinfer.backend": "onnxruntime",
        "edgeinfer.device": "cpu",
    }
    assert found["edgeinfer.run.duration"] == [[labels, 5]]
    assert found["edgeinfer.run.failures"] == [[{**labels, "error.type": "InputError"}, 1]]


EXPORTED = """
import json, sys
import numpy as np
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import edgeinfer

# A session may be loaded before the application sets up its exporter.
session = edgeinfer.load(sys.argv[1], stats=sys.argv[2] == "on", measure=False)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
x = np.ones((1, 16), np.float32)
for _ in range(5):
    session(x)
try:
    session(x[:, :3])
except edgeinfer.errors.InputError:
    pass
data = reader.get_metrics_data()
found = {}
for resource in data.resource_metrics if data is not None else ():
    for scope in resource.scope_metrics:
        for metric in scope.metrics if scope.scope.name == "edgeinfer" else ():
            points = metric.data.data_points
            counts = [p.count if hasattr(p, "count") else p.value for p in points]
            found[metric.name] = [[dict(p.attributes), n] for p, n in zip(points, counts)]
print(json.dumps(found))
"""
