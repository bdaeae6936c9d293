"""What every test shares: no surprise skips where an engine is known to be installed."""

import gc
import importlib.util
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.garbage import look_seldom
from edgeinfer.machine import pages
from tests import memory_disk, samples

# Before anything asks where temporary files go.
memory_disk.use()
# Tests also import the engines by themselves, to compare; without telemetry (backends/engines.py).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# NumPy is an engine here too; its BLAS has to know before it is imported that one thread is one.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# What tests convert is not noted in the account of whoever runs them.
_STATE = tempfile.TemporaryDirectory(prefix="edgeinfer-state-")
os.environ.setdefault("EDGEINFER_STATE", _STATE.name)
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fail at once if a package that this run promised is not there, instead of skipping."""
    required = os.environ.get("EDGEINFER_TEST_REQUIRE", "").split()
    missing = [name for name in required if importlib.util.find_spec(name) is None]
    if missing:
        raise pytest.UsageError(f"EDGEINFER_TEST_REQUIRE names missing packages: {missing}")


def pytest_collection() -> None:
    """Collect no garbage while test modules are imported: nearly all that they make stays."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only sweeps run, before tests are chosen by their marks."""
    samples.mark(items)


def pytest_collection_finish() -> None:
    """Leave what was imported out of later collections, and look for young garbage less often."""
    gc.freeze()
    look_seldom()
    gc.enable()


_skipped: list[str] = []


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append(f"{report.nodeid}\t{report.longrepr[2]}")


pytest_runtest_logreport = pytest_collectreport = _note_skip


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was skipped, with the reason, where another run is to make up for it."""
    file = os.environ.get("EDGEINFER_TEST_SKIPPED")
    if file and not hasattr(session.config, "workerinput"):
        Path(file).write_text("".join(f"{line}\n" for line in sorted(set(_skipped))))


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give numbered folders; those of pytest search all that were made before, for each test."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(n) for n in itertools.count())


@pytest.fixture(autouse=True)
def private_cache(caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the history and extracted bundles of one test away from all others and from the user."""
    folder = next(caches)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("EDGEINFER_CACHE", str(folder))


@pytest.fixture(autouse=True, scope="module")
def conversions_stay_in_this_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Convert here, but in tests of whole ways: another process imports for seconds.

    A test about processes uses ``conversions_apart``.
    """
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if folder != "e2e":
            patch.setenv("EDGEINFER_IN_PROCESS", "1")
        yield


@pytest.fixture
def conversions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert as users do, in a process for the conversion and one for each engine."""
    monkeypatch.delenv("EDGEINFER_IN_PROCESS", raising=False)


@pytest.fixture(autouse=True, scope="session")
def the_only_engine_is_timed_briefly() -> Iterator[None]:
    """Time an engine that races no other for 20 ms in place of 0.2 s: no test looks at the figure.

    Nearly every session of a test has one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeinfer.runtime.choice.ALONE_S", 0.02)
        yield


_states: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def numbers_of_the_module(request: pytest.FixtureRequest) -> None:
    """Let each test draw the same numbers of its module's ``RNG``, whatever ran before it."""
    generator = getattr(request.module, "RNG", None)
    if generator is not None:
        bits = generator.bit_generator
        bits.state = _states.setdefault(request.module.__name__, bits.state)


_module: Any = None
_modules = 0


@pytest.fixture(autouse=True)
def heap_of_others_is_left_alone(request: pytest.FixtureRequest) -> None:
    """Keep collections short: conversions collect at every stage, coremltools after each model.

    What packages and earlier modules left on the heap stays, and looking at it took a sixth of all
    time, giving it back a thirtieth. A large package that a test imports is left out as well.
    """
    global _module, _modules
    if request.module is not _module or len(sys.modules) > _modules + 20:
        _module, _modules = request.module, len(sys.modules)
        gc.collect()
        gc.freeze()
        pages._code_mb = pages.resident_mb()


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Hide packages by name; others are found, as transformers asks once and for good for torch."""
    find = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, package=None: None if name in names else find(name, package),
        )

    return hide


@pytest.fixture
def faulty_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register engines that fail as they are told to, here and in processes started from here."""
    from edgeinfer.backends import registry
    from edgeinfer.backends.testing import faults

    folder = tmp_path / "plugin"
    faults.install(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    registry._load.cache_clear()
    return folder
