"""Backends made of NumPy, whose speed, faults and devices a test decides."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.base import (
    Artifact,
    Backend,
    Bound,
    Capabilities,
    Device,
    Executable,
    LoadOptions,
    Probe,
)
from edgeinfer.backends.operators import Placement
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import ClosedError, LoadError, RunError, UsageError
from edgeinfer.types import Array, Feeds, TensorSpec
from tests.clock import MEASURING, Clock

INPUTS = (TensorSpec("x", "float32", ("N", 3)), TensorSpec("k", "int64", ("N",)))
OUTPUTS = (TensorSpec("double", "float32", ("N", 3)), TensorSpec("k'", "int64", ("N",)))


class FakeBound:
    def __init__(self, owner: "FakeExecutable", inputs: Feeds, outputs: Feeds) -> None:
        self.inputs, self.outputs, self._owner = inputs, outputs, owner

    def __call__(self) -> None:
        for name, value in self._owner.run(self.inputs).items():
            self.outputs[name][...] = value


class FakeExecutable:
    def __init__(self, backend: "FakeBackend", artifact: Artifact, options: LoadOptions) -> None:
        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        self.backend, self.options, self.closed = backend, options, False
        self.told = backend.told.get(artifact.computed_in)
        self._lock = threading.Lock()
        self.inside = 0

    def run(self, feeds: Feeds) -> dict[str, Array]:
        if self.closed:
            raise ClosedError("fake: closed")
        with self._lock:
            self.inside += 1
            self.backend.most_inside = max(self.backend.most_inside, self.inside)
        try:
            delay_s, bias = self.told or (self.backend.delay_s, self.backend.bias)
            self.backend.sleep(delay_s)
            if self.backend.gate is not None and not self.backend.gate.wait(60):
                raise RunError("fake: nobody opened the gate")
            if self.backend.run_error:
                raise RunError(self.backend.run_error)
            if self.backend.poison is not None and self.backend.poison in feeds["x"]:
                raise RunError(f"fake: {self.backend.poison}")
            if self.closed:
                raise ClosedError("fake: closed while running")
            values = [feeds["x"] * 2 + np.float32(bias), feeds["k"].copy()]
            return dict(zip([o.name for o in self.outputs], values, strict=True))
        finally:
            with self._lock:
                self.inside -= 1

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        return FakeBound(self, inputs, outputs)

    def placement(self) -> Placement | None:
        return self.backend.placed

    def close(self) -> None:
        assert not self.inside, "closed while running"
        self.closed = True
        self.backend.open.remove(self)


@dataclass
class FakeBackend:
    name: str = "fake"
    version: str | None = "1.2.3"
    devices: tuple[Device, ...] = (Device("cpu", "fake cpu"),)
    reason: str = ""
    bias: float = 0.0
    delay_s: float = 0.0
    sleep: Callable[[float], None] = time.sleep
    load_error: str = ""
    run_error: str = ""
    gate: threading.Event | None = None
    poison: float | None = None
    concurrent: bool = True
    unprepared: str = ""
    format: str = "fake"
    placed: Placement | None = None
    told: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Delay and bias where it is told what to compute in."""
    open: list[Executable] = field(default_factory=list)
    loads: int = 0
    most_inside: int = 0
    paths: list[Path] = field(default_factory=list)

    def probe(self) -> Probe:
        return Probe(self.name, self.version, self.devices, self.reason)

    def capabilities(self) -> Capabilities:
        formats, dtypes = frozenset({self.format}), frozenset({"float32", "int64"})
        return Capabilities(
            formats, dtypes, concurrent_runs=self.concurrent, unprepared_inputs=self.unprepared
        )

    def load(self, artifact: Artifact, options: LoadOptions) -> Executable:
        self.loads += 1
        self.paths.append(artifact.path)
        if self.load_error:
            raise LoadError(self.load_error)
        executable = FakeExecutable(self, artifact, options)
        self.open.append(executable)
        return executable


class Fakes(dict[str, FakeBackend]):
    """Backends by name; ``add`` makes one."""

    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def add(self, name: str, **fields: object) -> FakeBackend:
        self[name] = FakeBackend(name, sleep=self.sleep, **fields)  # type: ignore[arg-type]
        return self[name]


def make_fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Take the place of all backends."""
    known = Fakes()

    def get(name: str) -> Backend:
        if name not in known:
            raise UsageError(f"unknown backend {name!r}")
        return known[name]  # type: ignore[return-value]

    monkeypatch.setattr(registry, "get", get)
    return known


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return make_fakes(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let engines be compared on a time that only their own delays pass.

    A run takes a little in any case: one that took none would be run thousands of times.
    """
    passing = Clock()
    for name in MEASURING:
        monkeypatch.setattr(name, passing)
    monkeypatch.setattr(Fakes, "sleep", staticmethod(lambda s: passing.sleep(max(s, 2e-4))))
    return passing


MakeBundle = Callable[..., Path]


def write_bundle(
    path: Path,
    *engines: str | tuple[str, ...],
    vectors: int = 2,
    inputs: tuple[TensorSpec, ...] = INPUTS,
    precision: str = "fp32",
    constraints: tuple[dict[str, str], ...] = (),
    special: float = 0.0,
    tested: str = "",
    also: tuple[str, ...] = (),
    **more: Any,
) -> Path:
    """Write a bundle with one variant a set of backends, all of the same contents.

    Of the first variant there is one more for each type of ``also``, of the same file.
    """
    rng = np.random.default_rng(0)
    with BundleWriter(path) as writer:
        variants = []
        for i, backends in enumerate(engines):
            ident = f"v{i}"
            file = writer.add_bytes(f"variants/{ident}/model", f"model {i}".encode())
            listed = (backends,) if isinstance(backends, str) else backends
            required = tuple(EngineRequirement(b, tested=tested) for b in listed)
            held = constraints[i] if constraints else {}
            variants.append(Variant(ident, "cpu", "fake", precision, (file,), required, held))
        variants += [
            replace(variants[0], id=f"v0-{kind}", precision=kind, computed_in=kind, consent=kind)
            for kind in also
        ]
        records = []
        for n in range(1, vectors + 1):
            feeds: dict[str, Array] = {"x": rng.random((n, 3), np.float32), "k": np.arange(n)}
            if special and n == 1:
                feeds["x"][0, 0] = special
            expected = {"double": feeds["x"] * 2, "k'": feeds["k"]}
            records.append(writer.add_vector(inputs, OUTPUTS, feeds, expected, "user"))
        source = SourceRecord("onnx", "f", "0" * 64)
        writer.finish(
            Manifest("fake", inputs, OUTPUTS, tuple(variants), tuple(records), source, **more)
        )
    return path


@pytest.fixture
def make_bundle(tmp_path: Path) -> MakeBundle:
    """Write a bundle into the test's folder; as ``write_bundle``."""

    def make(*engines: str | tuple[str, ...], name: str = "fake.edge", **more: Any) -> Path:
        return write_bundle(tmp_path / name, *engines, **more)

    return make
