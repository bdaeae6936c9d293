"""What every backend checks before it hands something to its engine.

Plugins may use these too; the messages then read the same whatever the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.base import Artifact, DeviceKind, LoadOptions, Probe
from edgeinfer.backends.foreign_engines import OPERATOR, holds_engine
from edgeinfer.errors import LoadError, NotAvailableError, RunError
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.printable import visible
from edgeinfer.types import Array, Dim, Feeds, TensorSpec

_MESSAGE_LIMIT = 500

_GRAPHS = ("onnx", "onnx_tvm")
"""Formats whose files are ONNX."""

MOST_THREADS = 1024
"""Threads of an engine; more are a slip of the finger, and some engines do not survive them."""


def one_line(error: BaseException) -> str:
    """Return an engine's message as one line of bounded length."""
    # Engines say again what names a file has for its tensors.
    text = visible(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def check_device(probe: Probe, kind: DeviceKind, hint: str = "") -> None:
    """Refuse a device that the engine does not have here.

    Args:
        probe: what was found.
        kind: the device requested.
        hint: what to do about a device that is missing.

    Raises:
        NotAvailableError: with the probe's reason or the devices that are here.
    """
    if not probe.available:
        raise NotAvailableError(f"backend {probe.backend!r}: {probe.reason}")
    if all(device.kind != kind for device in probe.devices):
        here = ", ".join(sorted({device.kind for device in probe.devices}))
        tail = f"; {hint}" if hint else ""
        raise NotAvailableError(
            f"backend {probe.backend!r}: no device {kind!r} here, only {here}{tail}"
        )


def check_file(
    backend: str, artifact: Artifact, formats: Iterable[str], allowed: Collection[str] = ()
) -> Path:
    """Return the artifact's path after checking its format and that the file is there.

    Args:
        backend: its name.
        artifact: what is to be opened.
        formats: Formats that it opens.
        allowed: floats of fewer bits that it can be set to compute in.

    Raises:
        LoadError: another format, no such file, not a file, to be computed in what it is not, or
            it brings an engine that somebody else built.
    """
    if artifact.computed_in and artifact.computed_in not in allowed:
        known_ones = f"only in {' or '.join(allowed)}" if allowed else "only as the file says"
        raise LoadError(
            f"backend {backend!r} computes {known_ones}, not in {artifact.computed_in!r}; take a "
            "variant in fp32"
        )
    known = sorted(formats)
    if artifact.format not in known:
        raise LoadError(
            f"backend {backend!r} opens {', '.join(known)}, not {artifact.format!r}: "
            f"{artifact.path}"
        )
    if not artifact.path.is_file():
        state = "is not a file" if artifact.path.exists() else "does not exist"
        raise LoadError(f"backend {backend!r}: {artifact.path} {state}")
    if artifact.format in _GRAPHS and holds_engine(artifact.path):
        raise LoadError(
            f"backend {backend!r}: {artifact.path} holds an engine that somebody else built "
            f"({OPERATOR}), which is machine code; give the model that it was built from"
        )
    return artifact.path


def check_package(backend: str, artifact: Artifact, form: str) -> Path:
    """Return the path of an artifact that may be a folder with a manifest.

    Raises:
        LoadError: another format, or nothing is there.
    """
    if artifact.format == form and artifact.path.is_dir() and not artifact.computed_in:
        return artifact.path
    return check_file(backend, artifact, (form,))


def check_feeds(
    specs: Sequence[TensorSpec], dtypes: Mapping[str, np.dtype[Any]], feeds: Feeds
) -> None:
    """Refuse feeds that are not what the specs say.

    Raises:
        RunError: a name, an element type or a shape is another.
    """
    names = [spec.name for spec in specs]
    if feeds.keys() != set(names):
        raise RunError(f"run: expected inputs {names}, received {list(feeds)}")
    for spec in specs:
        array = feeds[spec.name]
        if array.dtype != dtypes[spec.name]:
            received = f"expected {spec.dtype}, received {array.dtype}"
            raise RunError(f"run: input {spec.name!r}: {received}")
        if spec.shape is not None and not fits(spec.shape, array.shape):
            raise RunError(f"run: input: expected {spec}, received shape {array.shape}")


def check_signature(
    backend: str, kind: str, wanted: tuple[TensorSpec, ...], found: Sequence[Mapping[str, str]]
) -> tuple[int, ...]:
    """Refuse an artifact whose tensors are not the ones its description promises.

    Shapes are not compared: a description may name axes that the file leaves open.

    Args:
        backend: for the message.
        kind: ``input`` or ``output``.
        wanted: the description.
        found: for each of the engine's tensors the names it goes by, with its element type.

    Returns:
        For each wanted tensor its position in ``found``.

    Raises:
        LoadError: a name is missing, an input is left over, or an element type differs.
    """
    place = {name: index for index, names in enumerate(found) for name in names}
    if missing := [spec.name for spec in wanted if spec.name not in place]:
        raise LoadError(
            f"backend {backend!r}: {kind}s {missing} are not in the artifact, it has {list(place)}"
        )
    order = tuple(place[spec.name] for spec in wanted)
    extra = [list(names) for index, names in enumerate(found) if index not in order]
    if kind == "input" and extra:
        raise LoadError(f"backend {backend!r}: the artifact wants further inputs {extra}")
    for spec, index in zip(wanted, order, strict=True):
        if spec.dtype != found[index][spec.name]:
            raise LoadError(
                f"backend {backend!r}: {kind} {spec.name!r}: expected {spec.dtype}, "
                f"the artifact has {found[index][spec.name]}"
            )
    return order


def array_type(dtype: str) -> np.dtype[Any]:
    """Return the array type of a tensor's element type.

    Raises:
        LoadError: no such type; what a file says may be anything.
        NotAvailableError: bfloat16 without the package that brings it to NumPy.
    """
    if dtype == "string":
        return np.dtype(object)
    if dtype != "bfloat16":
        with suppress(TypeError, ValueError, SyntaxError):
            if (found := np.dtype(dtype)).kind in "biufc":
                return found
        raise LoadError(f"there is no element type {visible(dtype)!r}")
    try:
        import ml_dtypes
    except ImportError as error:
        raise NotAvailableError("bfloat16 arrays need ml_dtypes; pip install ml_dtypes") from error
    brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return brain


def thread_count(backend: str, options: LoadOptions) -> int:
    """Return the threads requested, or as many as this process may use.

    Raises:
        LoadError: fewer than one.
    """
    if options.threads is None:
        return available_cpus()
    if not 1 <= options.threads <= MOST_THREADS:
        raise LoadError(
            f"backend {backend!r}: threads must be 1 or more and at most {MOST_THREADS}, "
            f"not {options.threads}"
        )
    return options.threads


def check_buffers(
    kind: str,
    specs: tuple[TensorSpec, ...],
    arrays: Feeds,
    dtypes: Mapping[str, np.dtype[Any]],
    *,
    there: bool = False,
) -> dict[str, Array]:
    """Return the buffers in the order of ``specs`` after checking that an engine can use them.

    Args:
        kind: ``input`` or ``output``, for the message.
        specs: the tensors.
        arrays: one buffer a tensor.
        dtypes: element type of each tensor's buffer, by tensor name.
        there: buffers may lie on the engine's device (``backends.device_tensor``).

    Raises:
        RunError: a buffer is missing, left over, of another type or shape, not C-contiguous, or
            is an output that cannot be written.
    """
    if left := sorted(arrays.keys() - {spec.name for spec in specs}):
        raise RunError(f"bind: no {kind} is named {', '.join(map(repr, left))}")
    buffers: dict[str, Array] = {}
    for spec in specs:
        if spec.name not in arrays:
            raise RunError(f"bind: {kind} {spec.name!r} has no buffer")
        array = arrays[spec.name]
        writes = kind == "output"
        if fault := _buffer_fault(spec, array, dtypes[spec.name], writes=writes, there=there):
            raise RunError(f"bind: {kind} {spec.name!r}: {fault}")
        buffers[spec.name] = array
    return buffers


def _buffer_fault(
    spec: TensorSpec, array: Array, dtype: np.dtype[Any], *, writes: bool, there: bool
) -> str | None:
    on_host = isinstance(array, np.ndarray)
    if not on_host and not (there and hasattr(array, "__dlpack_device__")):
        return f"expected a numpy array, received {type(array).__name__}"
    if array.dtype != dtype:
        return f"expected {dtype}, received {array.dtype}"
    if dtype.hasobject:
        return "strings have no buffer to bind; use run"
    if spec.shape is not None and not fits(spec.shape, array.shape):
        return f"expected {spec}, received shape {array.shape}"
    if not on_host:
        return None
    if not array.flags.c_contiguous:
        return "the buffer is not C-contiguous"
    if writes and not array.flags.writeable:
        return "the buffer is read-only"
    return None


def fits(dims: tuple[Dim, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array's shape is one that a tensor may have; named axes are not compared."""
    return len(dims) == len(shape) and all(
        want == got for want, got in zip(dims, shape, strict=True) if isinstance(want, int)
    )
