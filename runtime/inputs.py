"""The one place where what a caller gives is checked before an engine sees it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.backends.device_tensor import DeviceFeeds, device_of, is_on_device, is_on_host, taken
from edgeinfer.backends.process.guard import MAX_SHAPES
from edgeinfer.bundle.manifest import Manifest, Variant
from edgeinfer.bundle.values import KEY, SLACK, WORDS, largest, reaches, unfit
from edgeinfer.bundle.vectors import dtype_of
from edgeinfer.errors import InputError
from edgeinfer.types import Array, Feeds, InputRange, TensorSpec


class InputCheck:
    """Checks feeds against specs; shapes that were good once pass on a set look-up.

    Args:
        specs: the model's inputs.
        check_finite: refuse NaN and infinity in float inputs.
        there: the engine reads tensors on an NVIDIA device where they are.
    """

    __slots__ = ("_always", "_check_finite", "_seen", "_specs", "_there", "_typed", "names")

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        check_finite: bool = False,
        *,
        there: bool = False,
    ) -> None:
        self._specs = specs
        self._there = there
        self._check_finite = check_finite
        # The elements of an object array may change under an equal shape.
        self._always = check_finite or any(spec.dtype == "string" for spec in specs)
        self._typed = [(spec.name, dtype_of(spec.dtype)) for spec in specs]
        self._seen: set[tuple[tuple[int, ...], ...]] = set()
        self.names = tuple(spec.name for spec in specs)

    def __call__(self, feeds: Feeds) -> Feeds:
        """Return the feeds as arrays of the right type and shape.

        Raises:
            InputError: names the input, what it takes and what was given.
        """
        try:
            shapes = []
            for name, dtype in self._typed:
                array = feeds[name]
                if type(array) is not np.ndarray or array.dtype is not dtype:
                    return self._fully(feeds)
                shapes.append(array.shape)
            if tuple(shapes) not in self._seen or len(feeds) != len(shapes) or self._always:
                return self._fully(feeds)
        except (KeyError, TypeError, IndexError):
            return self._fully(feeds)
        return feeds

    def _fully(self, feeds: Feeds) -> Feeds:
        if not isinstance(feeds, Mapping):
            expected = "a dict of arrays by input name"
            raise InputError("*", expected, type(feeds).__name__, "or call session(x, ...)")
        self._check_names(feeds)
        arrays = {
            spec.name: as_array(spec, dtype, feeds[spec.name], there=self._there)
            for spec, (_, dtype) in zip(self._specs, self._typed, strict=True)
        }
        check_shapes(self._specs, {name: array.shape for name, array in arrays.items()})
        if self._check_finite:
            for name, array in arrays.items():
                _check_finite(name, array)
        if len(self._seen) >= MAX_SHAPES:
            self._seen.clear()
        if any(not isinstance(array, np.ndarray) for array in arrays.values()):
            return DeviceFeeds(arrays)
        self._seen.add(tuple(array.shape for array in arrays.values()))
        return arrays

    def _check_names(self, feeds: Feeds) -> None:
        known = ", ".join(map(repr, self.names)) or "none"
        for spec in self._specs:
            if spec.name not in feeds:
                given = ", ".join(map(repr, feeds)) or "nothing"
                raise InputError(spec.name, str(spec), given, f"the model's inputs: {known}")
        for name in feeds:
            if name not in self.names:
                expected = f"one of the model's inputs ({known})"
                raise InputError(str(name), expected, "an unknown name")


class ValueCheck:
    """Refuses the values for which what runs gives wrong numbers.

    Args:
        specs: the model's inputs.
        level: one of ``bundle.values.LEVELS``; None where NaN and infinity are taken.
        hint: what takes them.
        reach: the largest magnitude that half precision was judged for, by input, and the range it
            comes of. Beyond it a warning is given once; beyond ``SLACK`` times that it is refused.
    """

    __slots__ = ("_hint", "_level", "_names", "_reach", "_told")

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        level: str | None,
        hint: str,
        reach: Mapping[str, tuple[float, InputRange]] | None = None,
    ) -> None:
        # Integers, text and bools have no such values.
        floats = tuple(s.name for s in specs if dtype_of(s.dtype).kind in "fcV")
        self._reach = dict(reach or {})
        self._names = tuple(n for n in floats if level is not None or n in self._reach)
        self._level, self._hint = level, hint
        self._told: set[str] = set()

    def __call__(self, feeds: Feeds) -> None:
        """Look at every float input.

        Raises:
            InputError: says which value, why it is refused, and what takes it.
        """
        for name in self._names:
            array = feeds[name]
            if name in self._reach and isinstance(array, np.ndarray):
                most = self._reach[name][0]
                # What is within is finite too: one look at the elements serves both.
                if (found := largest(array)) <= most:
                    continue
                self._beyond(name, found)
            if self._level is not None and (unfitting := unfit(self._level, array)):
                raise InputError(name, WORDS[self._level], unfitting, self._hint)

    def holds(self, feeds: Feeds) -> bool:
        """Whether there is nothing to say of the inputs; may be asked in any thread."""
        for name in self._names:
            array = feeds[name]
            if name in self._reach and isinstance(array, np.ndarray):
                if not largest(array) <= self._reach[name][0]:
                    return False
            elif self._level is not None and unfit(self._level, array):
                return False
        return True

    def covers(self, other: ValueCheck) -> bool:
        """Whether it refuses everything that another one does."""
        return (self._level, self._reach) == (other._level, other._reach)

    def _beyond(self, name: str, found: float) -> None:
        most, span = self._reach[name]
        if not found > most:
            # NaN, which has no magnitude.
            return
        expected = f"values up to {most:g}, for which half precision was judged: {span}"
        if found > SLACK * most:
            raise InputError(name, expected, f"{found:.6g}", _WIDER)
        if name not in self._told:
            self._told.add(name)
            text = f"input {name!r}: expected {expected}; received {found:.6g}; {_WIDER}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)


_WIDER = "convert with --input-range NAME=LO:HI or --data that reaches so far, or in fp32"


def value_check(manifest: Manifest, variant: Variant, backend: str) -> ValueCheck | None:
    """Return the check of what a variant is not right for, if there is anything."""
    level = variant.constraints.get(KEY)
    reach = reaches(variant.precision, variant.format, manifest.ranges)
    if level is None and not reach:
        return None
    others = {e.backend for v in manifest.variants if KEY not in v.constraints for e in v.engines}
    hint = f"{backend} gives wrong numbers for them"
    if names := sorted(others - {backend}):
        hint += f"; load with backend={' or '.join(map(repr, names))}, which takes them"
    return ValueCheck(manifest.inputs, level, hint, reach)


def check_shapes(
    specs: tuple[TensorSpec, ...], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the sizes of the named axes.

    Raises:
        InputError: a rank or size does not fit, or one name would have two sizes.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        shape = shapes[spec.name]
        if spec.shape is None:
            continue
        if len(shape) != len(spec.shape):
            received = f"{len(shape)} axes, shape {list(shape)}"
            raise InputError(spec.name, f"{len(spec.shape)} axes, {spec}", received)
        for axis, (want, got) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(want, int) and want != got:
                received = f"{got}, shape {list(shape)}"
                raise InputError(spec.name, f"size {want} in axis {axis}, {spec}", received)
            if isinstance(want, str):
                size, first = sizes.setdefault(want, (got, spec.name))
                if size != got:
                    expected = f"{want} = {size} in axis {axis}, as in input {first!r}"
                    raise InputError(spec.name, expected, f"{got}, shape {list(shape)}")
    return {name: size for name, (size, _) in sizes.items()}


def as_array(spec: TensorSpec, dtype: np.dtype[Any], value: Any, *, there: bool = False) -> Array:
    """Return what a caller gave as an array, or as a tensor on the engine's device.

    Args:
        spec: Specification of the input.
        dtype: that it needs.
        value: an array, something that offers one by DLPack, or numbers.
        there: the engine reads tensors on an NVIDIA device where they are.

    Raises:
        InputError: it is nothing of that kind, or has another type.
    """
    if isinstance(value, np.ndarray) and _is_masked(value):
        raise InputError(spec.name, str(spec), "a masked array", "fill it: x.filled(value)")
    if isinstance(value, (np.ndarray, np.generic)):
        return _from_numpy(spec, dtype, np.asarray(value))
    if isinstance(value, (bool, int, float, complex, str, list, tuple)):
        return _from_python(spec, dtype, value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _from_dlpack(spec, dtype, value, there)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise InputError(spec.name, f"an array, {spec}", kind, "give a NumPy array")


def _is_masked(value: Array) -> bool:
    """Whether an array has a mask; NumPy loads its module for them where somebody makes one."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(value, masked.MaskedArray)


def _from_dlpack(spec: TensorSpec, dtype: np.dtype[Any], value: Any, there: bool) -> Array:
    """Share somebody's tensor: on the host as an array, on a device where it is."""
    try:
        on_host, on_device = is_on_host(value), is_on_device(value)
    # Its owner decides what it raises for memory that DLPack does not know.
    except Exception as e:
        received = f"a tensor that says not where it lies: {e}"
        raise InputError(spec.name, str(spec), received, "give a NumPy array") from e
    if not on_host and not (there and on_device):
        expected = f"{spec} in the host's memory, where the engine runs"
        raise InputError(spec.name, expected, f"one on {device_of(value)}", "copy it: x.cpu()")
    if on_device:
        try:
            tensor: Any = taken(value)
        except TypeError as e:
            raise InputError(spec.name, str(spec), f"a tensor that cannot be shared: {e}") from e
        if tensor.dtype != dtype:
            raise InputError(spec.name, spec.dtype, str(tensor.dtype))
        return tensor  # type: ignore[no-any-return]
    try:
        array = np.from_dlpack(value)
    # Its owner decides what it raises where a tensor cannot be given out.
    except Exception as e:
        hint = "give x.detach()" if "gradient" in str(e) else "give a NumPy array"
        received = f"a tensor that cannot be shared: {e}".rstrip(".")
        raise InputError(spec.name, str(spec), received, hint) from e
    if array.dtype != dtype and type(value).__module__.split(".")[0] == "torch":
        hint = f"convert it: x.to(torch.{spec.dtype})" if dtype.kind in "biufc" else ""
        raise InputError(spec.name, spec.dtype, str(array.dtype), hint)
    return _from_numpy(spec, dtype, array)


def _from_numpy(spec: TensorSpec, dtype: np.dtype[Any], array: Array) -> Array:
    if array.dtype == dtype:
        if dtype.hasobject and not all(isinstance(item, str) for item in array.flat):
            raise InputError(spec.name, "strings", "an array of other objects")
        # Equal types may be distinct objects; the other byte order compares unequal.
        return array if array.dtype is dtype else array.view(dtype)
    if dtype.hasobject and array.dtype.kind == "U":
        return array.astype(object)
    hint = f"convert it: x.astype(np.{spec.dtype})" if dtype.num < 256 else ""
    raise InputError(spec.name, spec.dtype, str(array.dtype), hint)


def _from_python(spec: TensorSpec, dtype: np.dtype[Any], value: Any) -> Array:
    """Take lists and numbers only where nothing is lost, because their type was never chosen."""
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise InputError(spec.name, str(spec), "a ragged list", "give a NumPy array") from e
    if dtype.hasobject:
        if array.dtype.kind == "U":
            return array.astype(object)
        raise InputError(spec.name, "strings", str(array.dtype))
    hint = f"say how: np.asarray(x, np.{spec.dtype})"
    if array.size == 0:
        return array.astype(dtype)
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "b") != (dtype.kind == "b"):
        raise InputError(spec.name, spec.dtype, f"a list of {array.dtype}", hint)
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        lossless = np.array_equal(converted.astype(array.dtype), array, equal_nan=True)
    if not lossless:
        text = "a list with values that it cannot hold exactly"
        raise InputError(spec.name, spec.dtype, text, hint)
    return converted


def _check_finite(name: str, array: Array) -> None:
    if not isinstance(array, np.ndarray):
        received = f"a tensor on {device_of(array)}"
        raise InputError(name, "an array whose elements can be looked at", received)
    # ml_dtypes' floats have kind "V"; only their names tell.
    if array.dtype.kind not in "fc" and not array.dtype.name.startswith(("bfloat", "float")):
        return
    wrong = ~np.isfinite(array)
    if wrong.any():
        where = [int(i) for i in np.argwhere(wrong)[0]]
        count = int(np.count_nonzero(wrong))
        received = f"{count} of {array.size} NaN or infinite, the first at {where}"
        hint = "--allow-nonfinite (check_finite=False) lets them in where an artifact takes them"
        raise InputError(name, "finite values", received, hint)
