"""What backends share that compile a model into an engine of this machine before anything runs.

An engine is looked for by what it was built for (``backends.engine_store``); where none is current
it is built, with a word in the log, and one that its own library refuses is built anew, once.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from edgeinfer.backends.base import Artifact, LoadOptions, ShapeRange
from edgeinfer.backends.checks import check_file
from edgeinfer.backends.engine_store import EngineKey, EngineStore
from edgeinfer.bundle.cache import cache_root
from edgeinfer.bundle.memory import is_in_memory
from edgeinfer.errors import LoadError, RunError
from edgeinfer.printable import as_line
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds, Progress, TensorSpec

_TIMING = "timing"

_log = logging.getLogger("edgeinfer")

Maker = TypeVar("Maker")
Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class WantedEngine(Generic[Maker]):
    """An engine that is wanted.

    Attributes:
        maker: what builds it.
        key: what it is for.
        path: Path of the model.
        artifact: the model's description.
        options: Options of the load.
    """

    maker: Maker
    key: EngineKey
    path: Path
    artifact: Artifact
    options: LoadOptions


class EngineBuilder(ABC, Generic[Maker]):
    """A backend that builds engines; what one is made of is for its heirs to say."""

    name: ClassVar[str]

    @property
    def _store(self) -> EngineStore:
        return EngineStore(cache_root() / "engines")

    @abstractmethod
    def _asked(self, artifact: Artifact, options: LoadOptions) -> WantedEngine[Maker]:
        """Check what is wanted and say what the engine is for; nothing is built."""

    @abstractmethod
    def _make(
        self, folder: Path, asked: WantedEngine[Maker], progress: Progress | None = None
    ) -> None:
        """Build an engine into an empty folder."""

    def unbuilt(self, artifact: Artifact, options: LoadOptions) -> str:
        """Say why an engine has to be built now; empty when a current one is here."""
        return self._store.reason(self._asked(artifact, options).key)

    def build(
        self, artifact: Artifact, options: LoadOptions, progress: Progress | None = None
    ) -> Path:
        """Return the folder of a current engine; builds it where there is none."""
        return self._built(self._asked(artifact, options), progress)

    def _opened(self, asked: WantedEngine[Maker], open_it: Callable[[Path], Opened]) -> Opened:
        """Open the current engine, which is built first where there is none."""
        folder = self._current(asked)
        try:
            return open_it(folder)
        except LoadError as error:
            # Whole on the disk and yet refused: built anew, once.
            _log.warning(
                "%s: its engine is refused and built anew: %s", asked.path, as_line(str(error))
            )
            self._store.drop(asked.key)
            return open_it(self._current(asked))

    def _current(self, asked: WantedEngine[Maker]) -> Path:
        if not (reason := self._store.reason(asked.key)):
            return self._built(asked)
        _log.warning(
            "%s: building its TensorRT engine, which can take minutes: %s "
            "(`edgeinfer build BUNDLE` does so ahead)",
            asked.path,
            reason,
        )
        start = time.monotonic()
        folder = self._built(asked)
        _log.warning("%s: engine built in %.1f s", asked.path, time.monotonic() - start)
        return folder

    def _built(self, asked: WantedEngine[Maker], progress: Progress | None = None) -> Path:
        def waiting() -> None:
            _log.warning("%s: another process builds its engine; waiting for it", asked.path)

        def make(folder: Path) -> None:
            self._make(folder, asked, progress)

        return self._store.build(asked.key, make, waiting)


def plain_model(backend: str, artifact: Artifact) -> Path:
    """Return the path of an ONNX file that an engine may be built of.

    Raises:
        LoadError: there is none, or its bundle is encrypted.
    """
    path = check_file(backend, artifact, ("onnx",))
    if is_in_memory(path):
        raise LoadError(
            f"backend {backend!r}: the bundle is encrypted, and TensorRT's engine would lie in "
            "the cache in plain; load with backend='onnxruntime'"
        )
    return path


def open_inputs(backend: str, artifact: Artifact, options: LoadOptions) -> list[str]:
    """Return the inputs with open sizes, in order; an engine is built for their shapes.

    Raises:
        LoadError: nobody has named them; nothing is ever built inside a run.
    """
    names = [spec.name for spec in artifact.inputs if not spec.is_static]
    check_named(backend, names, options.shapes)
    return names


def check_named(backend: str, names: list[str], shapes: Mapping[str, ShapeRange]) -> None:
    """Refuse inputs with open sizes whose shapes nobody has named.

    Raises:
        LoadError: there are some.
    """
    if missing := [name for name in names if name not in shapes]:
        raise LoadError(
            f"backend {backend!r}: the sizes of {', '.join(map(repr, missing))} are open: give the "
            "smallest, usual and largest shape, as `edgeinfer build --shape` does"
        )


class SizeRanges:
    """The sizes that an engine was built for."""

    def __init__(self, inputs: tuple[TensorSpec, ...], shapes: Mapping[str, ShapeRange]) -> None:
        self._shapes = {s.name: shapes[s.name] for s in inputs if s.name in shapes}

    def check(self, feeds: Feeds) -> None:
        """Refuse a size that the engine was not built for.

        Raises:
            RunError: an input has one.
        """
        for name, (low, _, high) in self._shapes.items():
            if name not in feeds:
                continue
            shape = feeds[name].shape
            sizes = zip(low, shape, high, strict=False)
            if len(shape) != len(low) or not all(a <= b <= c for a, b, c in sizes):
                raise RunError(
                    f"input {name!r}: expected a shape from {list(low)} to {list(high)}, for which "
                    f"its engine was built, received {list(shape)}; `edgeinfer build --shape` "
                    "builds it for others"
                )


def take_timing(folder: Path) -> None:
    """Copy what earlier builds have measured, so that a build that is killed cannot spoil it."""
    timing = cache_root() / "engines" / _TIMING
    if timing.is_dir():
        for file in timing.glob("*.timing"):
            shutil.copyfile(file, folder / file.name)


def give_timing(folder: Path) -> None:
    """Move what a build has measured out of its folder, for later builds."""
    timing = cache_root() / "engines" / _TIMING
    for file in folder.glob("*.timing"):
        timing.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = timing / f".{file.name}.{os.getpid()}"
        shutil.move(file, fresh)
        os.replace(fresh, timing / file.name)
