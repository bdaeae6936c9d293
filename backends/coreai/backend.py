"""The backend ``coreai``: a Core AI asset in Apple's own runtime, on the CPU of this machine.

coreai-core's wheel for Linux runs assets on a CPU, slowly and with nothing to choose. What it shows
is that the runtime accepts an asset and what it computes; not what a GPU or a Neural Engine does.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from edgeinfer.backends.base import Artifact, Capabilities, Device, LoadOptions, Probe
from edgeinfer.backends.checks import (
    array_type,
    check_device,
    check_feeds,
    check_package,
    check_signature,
    one_line,
    thread_count,
)
from edgeinfer.backends.copying import Copying
from edgeinfer.backends.engines import CoreAI, import_coreai
from edgeinfer.bounded import parse_json
from edgeinfer.errors import ClosedError, LoadError, RunError
from edgeinfer.installed import install
from edgeinfer.machine.cpu import usual_name
from edgeinfer.types import Array, Feeds, TensorSpec

NAME = "coreai"
FORMAT = "aimodel"
LABEL = "Apple's coreai-core, beta; not Apple hardware"
ENTRY = "main"

_SUFFIX = ".aimodel"
_METADATA = "metadata.json"
_PROGRAM = "main.mlirb"
_HASH = "main.hash"

DTYPES = (
    *("float16", "float32", "float64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)

T = TypeVar("T")


class CoreAIBackend:
    """Runs assets with coreai-core."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for coreai-core and whether its libraries can be loaded."""
        try:
            import_coreai()
            version = metadata.version("coreai-core")
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = "not installed" if missing else f"cannot be imported: {one_line(error)}"
            return Probe(NAME, None, reason=f"coreai-core {reason}; {install('coreai')}")
        unit = usual_name()
        label = "" if platform.system() == "Darwin" else f" ({LABEL})"
        return Probe(NAME, version, (Device("cpu", f"{unit}{label}"),))

    def capabilities(self) -> Capabilities:
        """Assets with open sizes; bound buffers are copied."""
        return Capabilities(formats=frozenset({FORMAT}), dtypes=frozenset(DTYPES), zero_copy=False)

    def load(self, artifact: Artifact, options: LoadOptions) -> CoreAIExecutable:
        """Open an asset.

        Raises:
            NotAvailableError: coreai-core or the device is not here.
            LoadError: not an asset, or one that the runtime refuses.
        """
        check_device(self.probe(), options.device, "off a Mac it runs on the CPU only")
        thread_count(NAME, options)
        if options.extra:
            raise LoadError(f"backend {NAME!r} has no options, not {sorted(options.extra)}")
        path = asset_folder(check_package(NAME, artifact, FORMAT))
        worker = _Worker()
        try:
            return CoreAIExecutable(worker, path, artifact)
        except BaseException:
            worker.close()
            raise


def asset_folder(path: Path) -> Path:
    """Return the asset that a path names: itself, or the folder of its metadata.

    Raises:
        LoadError: it is no asset, or a damaged one.
    """
    folder = path.parent if path.name == _METADATA else path
    try:
        parse_json((folder / _METADATA).read_text(encoding="utf-8"))
        program, expected = (folder / _PROGRAM).read_bytes(), (folder / _HASH).read_bytes()
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} is not a Core AI asset: {one_line(error)}") from error
    # The library ends the process on a program that it cannot read.
    if hashlib.sha256(program).digest() != expected:
        raise LoadError(f"{path}: {_PROGRAM} is damaged: its hash is not the one in {_HASH}")
    return folder


class _Worker:
    """A thread with an event loop: the runtime is asynchronous and stays where it was made."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="coreai")
        self._loop: asyncio.AbstractEventLoop = self._pool.submit(asyncio.new_event_loop).result()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._pool.submit(lambda: self._loop.run_until_complete(make())).result()

    def close(self) -> None:
        self._pool.submit(self._loop.close).result()
        self._pool.shutdown()


class CoreAIExecutable(Copying):
    """An asset's function; runs wait for each other."""

    def __init__(self, worker: _Worker, path: Path, artifact: Artifact) -> None:
        self._engine: CoreAI = import_coreai()
        self._worker: _Worker | None = worker
        self._lock = threading.Lock()
        self._held = AsyncExitStack()
        try:
            self._function: Any = worker.run(lambda: self._open(path))
            description = self._function.desc
            found = [_specs(description, kind) for kind in ("input", "output")]
        except LoadError:
            raise
        except Exception as error:
            raise LoadError(f"backend {NAME!r}: {path}: {one_line(error)}") from error
        self.inputs = _checked("input", artifact.inputs, found[0])
        self.outputs = _checked("output", artifact.outputs, found[1])
        self._dtypes = {s.name: array_type(s.dtype) for s in (*self.inputs, *self.outputs)}

    async def _open(self, path: Path) -> Any:
        # The runtime asks for the suffix; a bundle may have another name for the folder.
        if path.suffix != _SUFFIX:
            raise LoadError(f"backend {NAME!r}: {path}: the folder's name must end in {_SUFFIX}")
        try:
            asset = self._engine.authoring.AIModelAsset.load(path)
            # Off a Mac this compiles into a temporary folder that lives as long as the model.
            model = await self._held.enter_async_context(asset.executable())
            return model.load_function(ENTRY)
        except BaseException:
            await self._held.aclose()
            raise

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: the runtime failed, or an input does not fit.
            ClosedError: after ``close``.
        """
        self._opened()
        check_feeds(self.inputs, self._dtypes, feeds)
        _check_sizes(self.inputs, feeds)
        with self._lock:
            worker = self._opened()
            try:
                return worker.run(lambda: self._run(feeds))
            except Exception as error:
                raise RunError(f"backend {NAME!r}: {one_line(error)}") from error

    async def _run(self, feeds: Feeds) -> dict[str, Array]:
        make = self._engine.runtime.NDArray
        # ascontiguousarray would give a scalar an axis.
        given = {n: make(np.array(v, order="C", copy=None)) for n, v in feeds.items()}
        made = await self._function(given)
        return {s.name: np.array(made[s.name].numpy()) for s in self.outputs}

    def close(self) -> None:
        """Free the asset once nobody runs it."""
        with self._lock:
            if self._worker is None:
                return
            worker, self._worker = self._worker, None
            self._function = None
            worker.run(self._held.aclose)
            worker.close()

    def _opened(self) -> _Worker:
        if self._worker is None:
            raise ClosedError(f"backend {NAME!r}: used after close()")
        return self._worker


def _check_sizes(specs: tuple[TensorSpec, ...], feeds: Feeds) -> None:
    """Refuse empty tensors where a size is open: the runtime ends the process on some of them."""
    for spec in specs:
        shape = feeds[spec.name].shape
        for want, size in zip(spec.shape or (), shape, strict=False):
            if not size and not isinstance(want, int):
                raise RunError(
                    f"run: input {spec.name!r}: received shape {shape}; open sizes of a Core AI "
                    "asset start at 1"
                )


def _specs(description: Any, kind: str) -> tuple[TensorSpec, ...]:
    """What the asset itself says of its tensors."""
    found = []
    for name in getattr(description, f"{kind}_names"):
        tensor = getattr(description, f"{kind}_descriptor")(name)
        shape = tuple(None if s is None or s < 0 else int(s) for s in tensor.shape)
        found.append(TensorSpec(name, str(tensor.dtype), shape))
    return tuple(found)


def _checked(
    kind: str, wanted: tuple[TensorSpec, ...], found: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    if not wanted:
        return found
    check_signature(NAME, kind, wanted, [{s.name: s.dtype} for s in found])
    return wanted
