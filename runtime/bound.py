"""Repeated runs over fixed buffers, with nothing allocated or checked in between."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer import forks
from edgeinfer.backends.device_tensor import DeviceTensor
from edgeinfer.bundle.vectors import dtype_of
from edgeinfer.errors import ClosedError, InputError, UsageError
from edgeinfer.runtime.inputs import ValueCheck, as_array, check_shapes
from edgeinfer.types import Array, Feeds, TensorSpec

if TYPE_CHECKING:
    from edgeinfer.runtime.pool import Pool
    from edgeinfer.runtime.session import Session

_MANY_BYTES = 1 << 18
"""Bytes of inputs that take longer to look at than to have another thread do it."""


class BoundSession(forks.Here):
    """A session with its buffers fixed: fill ``inputs``, call, read ``outputs``.

    One thread at a time may use one such object; make one a thread.

    Attributes:
        inputs: the buffers that each call reads, by name.
        outputs: the buffers that each call writes, by name.
    """

    __slots__ = ("_call", "_enter", "_leave", "_life", "_session", "inputs", "outputs")

    def __init__(
        self, call: Callable[[], None], session: Session, inputs: Feeds, outputs: Feeds
    ) -> None:
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self._call = call
        # Kept, because a session that nobody holds is closed.
        self._session = session
        self._life = life = session._life
        self._enter, self._leave = life.running.append, life.running.pop

    def __call__(self) -> dict[str, Array]:
        """Run once over the buffers and return the outputs' buffers.

        Raises:
            RunError: the engine failed.
            ClosedError: the session was closed.
        """
        try:
            self._enter(None)
            if self._life.closed:
                raise ClosedError("session: used after close()")
            self._call()
        finally:
            self._leave()
            if self._life.closed:
                self._life.release()
        return self.outputs


def checked(
    call: Callable[[], None], values: ValueCheck, feeds: Feeds, *, beside: bool
) -> Callable[[], None]:
    """Return a call that looks at the values of its inputs.

    Four megabytes take 0.3 ms, a fifth of some networks' time on a large GPU, which leaves this
    machine idle: they are looked at meanwhile.

    Args:
        call: runs once.
        values: refuses some.
        feeds: Buffers of the inputs.
        beside: what runs is a device that takes none of this machine.
    """

    def before() -> None:
        values(feeds)
        call()

    def meanwhile() -> None:
        looking = _looks().submit(partial(values.holds, feeds))
        try:
            call()
        except Exception:
            values(feeds)
            raise
        if not looking.result():
            # The thread that asked hears of it.
            values(feeds)

    size = sum(array.nbytes for array in feeds.values() if isinstance(array, np.ndarray))
    return meanwhile if beside and size >= _MANY_BYTES else before


@functools.cache
def _looks() -> Pool:
    from edgeinfer.runtime.pool import Pool

    return Pool("edgeinfer-values", 2, 1 << 16)


def input_buffers(
    specs: tuple[TensorSpec, ...], given: Mapping[str, Array] | None, *, there: bool = False
) -> Feeds:
    """Return the buffers given, checked, or zeroed ones for what has a fixed size.

    With ``there``, buffers may be tensors on the engine's device.

    Raises:
        InputError: a buffer does not fit, or none was given where the size is open.
    """
    arrays = _buffers("input", specs, given, {}, there)
    check_shapes(specs, {name: array.shape for name, array in arrays.items()})
    return arrays


def output_buffers(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    feeds: Feeds,
    given: Mapping[str, Array] | None,
    *,
    there: bool = False,
) -> Feeds:
    """Return the buffers given, checked, or new ones where the inputs decide the size.

    Raises:
        UsageError: a buffer does not fit, is read-only, overlaps another, or none was given where
            the size is not known.
    """
    sizes = check_shapes(inputs, {name: array.shape for name, array in feeds.items()})
    try:
        arrays = _buffers("output", outputs, given, sizes, there)
        _check_writeable(list(arrays.items()), list(feeds.items()))
    except InputError as e:
        raise UsageError("output" + str(e).removeprefix("input")) from e
    return arrays


def _check_writeable(outputs: list[tuple[str, Array]], inputs: list[tuple[str, Array]]) -> None:
    for i, (name, array) in enumerate(outputs):
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise InputError(name, "a writeable buffer", "a read-only one")
        for other, neighbour in outputs[:i] + inputs:
            if _may_share(array, neighbour):
                raise InputError(name, "a buffer of its own", f"memory shared with {other!r}")


def _may_share(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    if isinstance(a, DeviceTensor) and isinstance(b, DeviceTensor):
        return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
    return False


def _buffers(
    side: str,
    specs: tuple[TensorSpec, ...],
    given: Mapping[str, Array] | None,
    sizes: Mapping[str, int],
    there: bool,
) -> dict[str, Array]:
    given = given or {}
    names = [spec.name for spec in specs]
    for name in given:
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise InputError(str(name), f"one of the model's {side}s ({known})", "an unknown name")
    return {s.name: _buffer(side, s, given.get(s.name), sizes, there) for s in specs}


def _buffer(
    side: str, spec: TensorSpec, given: Array | None, sizes: Mapping[str, int], there: bool
) -> Array:
    dtype = dtype_of(spec.dtype)
    if dtype.hasobject:
        raise UsageError(f"{side} {spec.name!r}: strings have no buffer to bind; use run")
    if given is None:
        dims = spec.shape and [sizes.get(d) if isinstance(d, str) else d for d in spec.shape]
        shape = () if spec.shape == () else tuple(d for d in dims or () if isinstance(d, int))
        if spec.shape is None or len(shape) != len(spec.shape):
            hint = f"give {side}s={{{spec.name!r}: array}} of the size of your runs"
            raise InputError(spec.name, "a buffer, because its size is open", "none", hint)
        return np.zeros(shape, dtype)
    if not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__"):
        # A buffer that is somebody else's: both see what either writes.
        given = as_array(spec, dtype, given, there=there)
        if isinstance(given, DeviceTensor):
            return _fitting(side, spec, given, sizes)
    if type(given) is not np.ndarray or given.dtype != dtype:
        received = str(given.dtype) if isinstance(given, np.ndarray) else type(given).__name__
        raise InputError(spec.name, f"a {spec.dtype} array", received)
    if not given.flags.c_contiguous:
        raise InputError(spec.name, "a C-contiguous buffer", "a strided one", "use a copy of it")
    return _fitting(side, spec, given, sizes)


def _fitting(side: str, spec: TensorSpec, given: Any, sizes: Mapping[str, int]) -> Array:
    if side == "output":
        wanted = spec.shape and tuple(
            sizes.get(d, d) if isinstance(d, str) else d for d in spec.shape
        )
        check_shapes((TensorSpec(spec.name, spec.dtype, wanted),), {spec.name: given.shape})
    return given  # type: ignore[no-any-return]
