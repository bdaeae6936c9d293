"""Test vectors: ``.npz`` files with ``in/<index>`` and ``out/<index>`` arrays.

Of an output that would outweigh the model there is a part, and ``part/<index>`` says which.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from edgeinfer.bounded import ZIP_ERRORS, Archive
from edgeinfer.bundle.ziprules import MAX_RATIO, RATIO_FLOOR, is_bomb
from edgeinfer.errors import BundleError
from edgeinfer.parts import restored, whole_shape
from edgeinfer.types import Array, TensorSpec

CARRIER: dict[int, np.dtype[Any]] = {1: np.dtype("uint8"), 2: np.dtype("uint16")}
"""Plain types that carry the bytes of types that NumPy itself does not know, by item size."""


def load_vector(
    where: str,
    data: bytes,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Read one vector back as feeds and expected outputs by name.

    Raises:
        BundleError: it is not such a file, or its arrays do not fit the manifest.
    """
    try:
        with Archive(io.BytesIO(data)) as archive:
            if is_bomb(archive.infolist(), len(data)):
                limit = f"more than {MAX_RATIO} times its size above {RATIO_FLOOR >> 20} MiB"
                raise BundleError(f"{where}: unpacks to {limit}")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            present = set(arrays.files)
            wanted = [(f"in/{i}", s) for i, s in enumerate(inputs)]
            wanted += [(f"out/{i}", s) for i, s in enumerate(outputs)]
            grids = present & {f"part/{i}" for i in range(len(outputs))}
            if present - grids != {key for key, _ in wanted}:
                raise BundleError(f"{where}: its arrays are not the manifest's inputs and outputs")

            def read(key: str) -> Array:
                return plain_array(partial(arrays.__getitem__, key))

            values = {}
            for key, spec in wanted:
                array, at = read(key), key.replace("out/", "part/")
                if at in grids:
                    array = restored(array, read(at))
                values[key] = _typed(where, key, array, spec)
    except ZIP_ERRORS as e:
        raise BundleError(f"{where}: is not a readable .npz without pickles: {e}") from e
    feeds = {spec.name: values[f"in/{i}"] for i, spec in enumerate(inputs)}
    return feeds, {spec.name: values[f"out/{i}"] for i, spec in enumerate(outputs)}


def plain_array(read: Callable[[], Array]) -> Array:
    """Read an array whose header may say anything.

    Args:
        read: has NumPy read it, without pickles.

    Raises:
        ValueError: its header is none, or it lists elements that have no bytes.
    """
    try:
        array = read()
    except (TypeError, tokenize.TokenError) as e:
        raise ValueError(f"the header of an array is malformed: {e}") from e
    # A header of a hundred bytes may list 2**60 of them, and NumPy writes none.
    if array.size and not array.dtype.itemsize:
        raise ValueError(f"it has {array.size} elements without any bytes")
    return native(array)


def native(array: Array) -> Array:
    """Return the same numbers in this machine's order of bytes: engines look at no other."""
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def _typed(where: str, key: str, array: Array, spec: TensorSpec) -> Array:
    if spec.dtype == "string":
        if array.dtype.kind != "U":
            raise BundleError(f"{where}: {key}: expected strings, received {array.dtype}")
        return array.astype(object)
    dtype = dtype_of(spec.dtype)
    if dtype.num >= 256 and array.dtype == CARRIER[dtype.itemsize]:
        array = array.view(dtype)
    if array.dtype != dtype:
        raise BundleError(f"{where}: {key}: expected {spec.dtype}, received {array.dtype}")
    shape = whole_shape(array)
    if spec.shape is not None and not _fits(shape, spec.shape):
        raise BundleError(f"{where}: {key}: shape {list(shape)} does not fit {spec}")
    return array


def _fits(shape: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    if len(shape) != len(wanted):
        return False
    return all(not isinstance(w, int) or w == s for s, w in zip(shape, wanted, strict=True))


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy type of a manifest's type name; ``string`` is ``object``.

    Raises:
        BundleError: the type needs ml_dtypes and that is not installed.
    """
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError as e:
        raise BundleError(f"type {name} needs ml_dtypes: pip install ml_dtypes") from e
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
