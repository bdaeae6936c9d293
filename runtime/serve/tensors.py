"""Tensors of the Open Inference Protocol, version 2: JSON, and Triton's binary extension.

Source: the protocol's ``open_inference_rest.yaml``; Triton's documentation of its
binary tensor data extension.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeGuard

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.runtime.serve.http import RequestError, from_json, to_json
from edgeinfer.runtime.serve.inflight import LARGE_BYTES
from edgeinfer.runtime.serve.terms import Terms, read_terms
from edgeinfer.types import Array, TensorSpec

_NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "string": "BYTES",
}
MOST_AXES = 32
"""Of a tensor; NumPy 1 has no more."""
_MOST_TEXTS = 8 << 20
"""Bytes of a raw tensor of texts: each becomes an object, one after the other."""
_CODES = {"float32": "<f", "float64": "<d"}
"""Of ``struct`` and NumPy. In this order ``struct`` refuses what is too large for the type."""
_FEW = 100
"""Values whose types are looked at one by one in less time than NumPy takes to begin."""
_DTYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items() if dtype != "string"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor is in shared memory.

    Attributes:
        region: Name of the region.
        offset: bytes of the region before it.
        size: its bytes; of an output, those that it may have.
    """

    region: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SharedTensors:
    """Tensors of a request that are in shared memory, by name.

    Attributes:
        inputs: what is said of each, and its place.
        outputs: Place of each.
    """

    inputs: dict[str, tuple[Mapping[str, Any], Place]]
    outputs: dict[str, Place]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What was asked.

    Attributes:
        id: Identifier of the request; empty for none.
        feeds: arrays by the input's name.
        outputs: names that are wanted; empty for all.
        binary: outputs that are wanted as raw bytes.
        terms: Terms of the run.
        shared: what is in shared memory; None for nothing.
    """

    id: str
    feeds: dict[str, Array]
    outputs: tuple[str, ...]
    binary: frozenset[str]
    terms: Terms
    shared: SharedTensors | None = None


def datatype(spec: TensorSpec) -> str:
    """Return a tensor's type in the protocol's words."""
    return _NAMES.get(spec.dtype, spec.dtype.upper())


def read(
    body: bytes | memoryview,
    json_size: int | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    limit: int,
    *,
    is_shared: bool = False,
) -> InferRequest:
    """Read a request.

    Args:
        body: JSON, and behind it the raw tensors in their order.
        json_size: bytes of the JSON; None if that is all.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        limit: elements of one tensor.
        is_shared: whether tensors may be in shared memory.

    Raises:
        RequestError: with status 400 and what is wrong.
    """
    if json_size is not None and not 0 <= json_size <= len(body):
        raise RequestError(400, f"inference-header-content-length: {json_size} of {len(body)}")
    data = from_json(body if json_size is None else body[:json_size])
    if not isinstance(data, dict):
        raise RequestError(400, "expected an object with 'inputs'")
    parameters = _object(data, "parameters")
    given = data.get("inputs")
    if not isinstance(given, list):
        raise RequestError(400, "inputs: expected a list of tensors")
    known = {spec.name: spec for spec in inputs}
    if len(given) > len(known):
        raise RequestError(400, f"inputs: at most {len(known)} tensors, received {len(given)}")
    raw = memoryview(body)[json_size:] if json_size is not None else memoryview(b"")
    feeds: dict[str, Array] = {}
    shared = SharedTensors({}, {}) if is_shared else None
    at = 0
    for number, item in enumerate(given):
        name = name_of(item, f"inputs[{number}]", known)
        if name in feeds or (shared is not None and name in shared.inputs):
            raise RequestError(400, f"input {name!r}: given twice")
        asked = _object(item, "parameters")
        size = asked.get("binary_data_size")
        place = place_of(asked, "input", name, is_shared=is_shared) if asked else None
        if shared is not None and place is not None:
            if size is not None or "data" in item:
                raise RequestError(400, f"input {name!r}: values together with shared memory")
            shared.inputs[name] = item, place
            continue
        if size is None:
            feeds[name] = from_values(item, known[name], limit)
            continue
        if type(size) is not int or size < 0 or at + size > len(raw):
            raise RequestError(400, f"input {name!r}: binary_data_size {size!r} is not there")
        if "data" in item:
            raise RequestError(400, f"input {name!r}: data together with binary_data_size")
        feeds[name] = from_bytes(item, known[name], raw[at : at + size], limit)
        at += size
    if at != len(raw):
        raise RequestError(400, f"{len(raw) - at} bytes behind the tensors belong to none")
    names, binary = wanted_outputs(data, parameters, outputs, shared)
    id = data.get("id", "")
    if not isinstance(id, str):
        raise RequestError(400, "id: expected a text")
    return InferRequest(id, feeds, names, binary, read_terms(parameters), any_of(shared))


def any_of(shared: SharedTensors | None) -> SharedTensors | None:
    """Return what is in shared memory; None where nothing is."""
    return shared if shared is not None and (shared.inputs or shared.outputs) else None


def place_of(asked: Mapping[str, Any], kind: str, name: str, *, is_shared: bool) -> Place | None:
    """Return where a tensor is in shared memory; None where it is not.

    Args:
        asked: Parameters of the tensor.
        kind: "input" or "output", for messages.
        name: Name of the tensor.
        is_shared: whether it may be there.

    Raises:
        RequestError: it may not, or this is no place.
    """
    region = asked.get("shared_memory_region")
    if region is None:
        return None
    what = f"{kind} {name!r}"
    if not is_shared:
        raise RequestError(400, f"{what}: shared memory is off")
    offset, size = asked.get("shared_memory_offset", 0), asked.get("shared_memory_byte_size")
    if not (isinstance(region, str) and _is_size(offset) and _is_size(size)):
        text = "expected the name of a region, its offset and byte_size, from 0 on"
        raise RequestError(400, f"{what}: shared memory: {text}")
    return Place(region, offset, size)


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def write(
    model: str, request: InferRequest, results: Mapping[str, Array], specs: Sequence[TensorSpec]
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the size of its JSON where raw tensors follow it."""
    described: list[dict[str, Any]] = []
    raw: list[bytes | memoryview] = []
    for spec in specs:
        array = chosen(request, results, spec.name)
        if array is None:
            continue
        item: dict[str, Any] = {
            "name": spec.name,
            "datatype": datatype(spec),
            "shape": list(array.shape),
        }
        if shared_output(request, spec.name) is not None:
            # The client knows where it is; Triton says no more.
            pass
        elif spec.name in request.binary:
            part = to_buffer(array)
            item["parameters"] = {"binary_data_size": len(part)}
            raw.append(part)
        else:
            item["data"] = to_values(spec, array)
        described.append(item)
    answer: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": described}
    if request.id:
        answer["id"] = request.id
    head = to_json(answer)
    return (b"".join([head, *raw]), len(head)) if raw else (head, None)


def chosen(request: InferRequest, results: Mapping[str, Array], name: str) -> Array | None:
    """Return an output; None where it is not wanted, or a sequence keeps it."""
    if request.outputs and name not in request.outputs:
        return None
    array = results.get(name)
    return None if array is None else np.asarray(array)


def shared_output(request: InferRequest, name: str) -> Place | None:
    """Return where an output was written to; None where it is sent."""
    return None if request.shared is None else request.shared.outputs.get(name)


def _object(data: Any, key: str) -> Mapping[str, Any]:
    found = data.get(key, {}) if isinstance(data, dict) else {}
    if not isinstance(found, dict):
        raise RequestError(400, f"{key}: expected an object")
    return found


def name_of(item: Any, where: str, known: Mapping[str, object]) -> str:
    """Return a tensor's name.

    Raises:
        RequestError: there is none, or the model has no such tensor.
    """
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str):
        raise RequestError(400, f"{where}: expected an object with a name")
    if name not in known:
        raise RequestError(400, f"{where}: no tensor {name!r}; known: {', '.join(known)}")
    return name


def wanted_outputs(
    data: Mapping[str, Any],
    parameters: Mapping[str, Any],
    specs: Sequence[TensorSpec],
    shared: SharedTensors | None,
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the names of outputs that are wanted, none for all, and those wanted as bytes.

    Args:
        data: What the request says.
        parameters: Parameters of the request.
        specs: Outputs of the model.
        shared: gets the places of those that go to shared memory; None where none may.

    Raises:
        RequestError: one is not known, or asks for what is not supported.
    """
    every = parameters.get("binary_data_output") is True
    given = data.get("outputs")
    if given is None:
        return (), frozenset(spec.name for spec in specs) if every else frozenset()
    known = {spec.name: spec for spec in specs}
    if not isinstance(given, list):
        raise RequestError(400, "outputs: expected a list")
    if len(given) > len(known):
        raise RequestError(400, f"outputs: at most {len(known)} tensors, received {len(given)}")
    names, binary = [], set()
    for number, item in enumerate(given):
        name = name_of(item, f"outputs[{number}]", known)
        asked = _object(item, "parameters")
        if "classification" in asked:
            raise RequestError(400, f"output {name!r}: classification is not supported")
        names.append(name)
        place = place_of(asked, "output", name, is_shared=shared is not None)
        if shared is not None and place is not None:
            shared.outputs[name] = place
        elif asked.get("binary_data", every) is True:
            binary.add(name)
    return tuple(names), frozenset(binary)


def _shape(item: Mapping[str, Any], name: str, limit: int) -> tuple[int, ...]:
    shape = item.get("shape")
    if not (
        isinstance(shape, list)
        and len(shape) <= MOST_AXES
        and all(type(d) is int and d >= 0 for d in shape)
    ):
        raise RequestError(400, f"input {name!r}: shape: expected a list of sizes")
    # Of an empty tensor too: the engine multiplies what is not zero.
    if math.prod(filter(None, shape)) > limit:
        raise RequestError(413, f"input {name!r}: more than {limit} elements")
    return tuple(shape)


def _checked(item: Mapping[str, Any], spec: TensorSpec) -> None:
    if item.get("datatype") != datatype(spec):
        raise RequestError(
            400,
            f"input {spec.name!r}: expected datatype {datatype(spec)}, "
            f"received {item.get('datatype')!r}",
        )


def from_values(item: Mapping[str, Any], spec: TensorSpec, limit: int) -> Array:
    """Return the values that a tensor lists.

    Raises:
        RequestError: they are not what the model takes.
    """
    _checked(item, spec)
    shape = _shape(item, spec.name, limit)
    values = item.get("data")
    if not isinstance(values, list):
        raise RequestError(400, f"input {spec.name!r}: data: expected a list")
    size = math.prod(shape)
    if len(values) == size and (found := _floats(values, spec)) is not None:
        return found.reshape(shape)
    flat, kinds = _flat(values, shape, spec.name)
    wanted = {str} if spec.dtype == "string" else {bool} if kinds == {bool} else {int, float}
    # Next to one text NumPy makes all as long.
    if not kinds <= wanted:
        word = "texts" if spec.dtype == "string" else f"numbers for {datatype(spec)}"
        raise RequestError(400, f"input {spec.name!r}: expected {word}")
    # NumPy makes floats of integers beyond its signed ones.
    is_wide = spec.dtype == "uint64" and kinds == {int}
    array = np.array(flat, dtype=object if spec.dtype == "string" or is_wide else None)
    if array.size != math.prod(shape):
        raise RequestError(400, f"input {spec.name!r}: {array.size} values for shape {list(shape)}")
    if spec.dtype == "string":
        return array.reshape(shape)
    return _exact(array, spec).reshape(shape)


def _floats(values: list[Any], spec: TensorSpec) -> Array | None:
    """Return a flat list of numbers, rounded once; None where it may be another one.

    JSON has no infinity, and what is too large for the type is no number of it either.
    """
    code = _CODES.get(spec.dtype)
    if code is None or not values or type(values[0]) is not float:
        return None
    try:
        found = np.frombuffer(struct.pack(f"<{len(values)}{code[1]}", *values), code)
    except (struct.error, OverflowError):
        return None
    if len(values) > _FEW:
        # Only what is 0 or 1 may have been true or false.
        values = [values[i] for i in np.flatnonzero((found == 0) | (found == 1)).tolist()]
    return None if bool in map(type, values) else found


def _flat(values: list[Any], shape: tuple[int, ...], name: str) -> tuple[list[Any], set[type]]:
    """Return what lists inside each other hold in the end, in order, and of which types it is.

    Raises:
        RequestError: there are more than the shape says, lists of one depth have unequal lengths,
            or they are nested too deeply.
    """
    level: list[Any] = values
    size = math.prod(shape)
    for _ in range(MOST_AXES):
        if len(level) > max(size, 1):
            raise RequestError(400, f"input {name!r}: {len(level)} values for shape {list(shape)}")
        kinds = set(map(type, level))
        if list not in kinds:
            return level, kinds
        if not kinds <= {list, bool, int, float}:
            # What else there is, is no part of a tensor whatever its place.
            return level, kinds
        if len(kinds) > 1 or len(set(map(len, level))) > 1:
            raise RequestError(400, f"input {name!r}: data: lists of unequal lengths")
        level = list(chain.from_iterable(level))
    raise RequestError(400, f"input {name!r}: data: more than {MOST_AXES} lists inside each other")


def _exact(array: Array, spec: TensorSpec) -> Array:
    """Cast numbers of JSON; what would lose its value is refused, never rounded to an integer."""
    wanted = _DTYPES.get(datatype(spec))
    if wanted is None:
        raise RequestError(400, f"input {spec.name!r}: {spec.dtype} travels as raw bytes only")
    if array.size == 0:
        return array.astype(wanted)
    ok = {"b": "b", "u": "ui", "i": "ui", "f": "uif"}[wanted.kind]
    if array.dtype.kind not in ok and array.dtype != object:
        raise RequestError(400, f"input {spec.name!r}: expected numbers for {datatype(spec)}")
    if wanted.kind in "ui":
        ends = np.iinfo(wanted)
        if int(array.min()) < ends.min or int(array.max()) > ends.max:
            raise RequestError(400, f"input {spec.name!r}: values beyond {datatype(spec)}")
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    # JSON has no infinity.
    if wanted.kind == "f" and not np.isfinite(cast).all():
        raise RequestError(400, f"input {spec.name!r}: values beyond {datatype(spec)}")
    return cast


def from_bytes(item: Mapping[str, Any], spec: TensorSpec, raw: memoryview, limit: int) -> Array:
    """Return the values of a tensor's bytes, which are not copied.

    Raises:
        RequestError: they are not what the model takes.
    """
    _checked(item, spec)
    shape = _shape(item, spec.name, limit)
    if spec.dtype == "string":
        return _texts(raw, spec.name, math.prod(shape)).reshape(shape)
    wanted = _DTYPES.get(datatype(spec))
    if wanted is None:
        raise RequestError(400, f"input {spec.name!r}: {spec.dtype} cannot travel")
    if len(raw) != math.prod(shape) * wanted.itemsize:
        raise RequestError(
            400,
            f"input {spec.name!r}: expected {math.prod(shape) * wanted.itemsize} bytes for shape "
            f"{list(shape)}, received {len(raw)}",
        )
    if wanted.kind == "b" and len(raw) and int(np.frombuffer(raw, np.uint8).max()) > 1:
        raise RequestError(400, f"input {spec.name!r}: a BOOL is neither 0 nor 1")
    return np.frombuffer(raw, wanted).reshape(shape)


def _texts(raw: memoryview, name: str, count: int) -> Array:
    """Read texts, each behind its length in four bytes."""
    if len(raw) > _MOST_TEXTS:
        raise RequestError(413, f"input {name!r}: texts of more than {_MOST_TEXTS} bytes")
    found: list[str] = []
    at = 0
    while at < len(raw) and len(found) <= count:
        size = int.from_bytes(raw[at : at + 4], "little")
        if at + 4 + size > len(raw):
            raise RequestError(400, f"input {name!r}: a text is cut off")
        try:
            found.append(str(raw[at + 4 : at + 4 + size], "utf-8"))
        except UnicodeDecodeError as e:
            raise RequestError(400, f"input {name!r}: a text is not UTF-8") from e
        at += 4 + size
    if len(found) != count:
        raise RequestError(400, f"input {name!r}: expected {count} texts")
    return np.array(found, dtype=object)


def to_buffer(array: Array) -> bytes | memoryview:
    """Return an array's bytes, large ones as they lie; texts each behind its length, four bytes."""
    if array.dtype.kind in "OSU":
        parts = [str(v).encode() for v in array.ravel()]
        return b"".join(len(p).to_bytes(4, "little") + p for p in parts)
    if array.nbytes < LARGE_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def to_values(spec: TensorSpec, array: Array) -> Any:
    """Return an array as JSON has it, flat.

    Raises:
        RequestError: it holds what JSON has no word for.
    """
    if array.dtype.kind in "OSU":
        return [str(v) for v in array.ravel()]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(
            422, f"output {spec.name!r} holds NaN or infinity, which JSON has not; request binary"
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(np.float32) if array.dtype == np.float16 else flat
