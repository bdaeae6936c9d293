"""Requests for a run as they come over gRPC."""

from __future__ import annotations

from typing import Any

from edgeinfer.runtime.serve import tensors
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.tensors import InferRequest, SharedTensors
from edgeinfer.runtime.serve.terms import read_terms
from edgeinfer.types import Array, TensorSpec

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

_MOST_PARAMETERS = 64
"""Of one request or tensor; those that are known are far fewer."""


def read(
    request: Any,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    limit: int,
    *,
    is_shared: bool = False,
) -> InferRequest:
    """Read a request.

    Args:
        request: the message.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        limit: elements of one tensor.
        is_shared: whether tensors may be in shared memory.

    Raises:
        RequestError: with status 400 and what is wrong.
    """
    known = {spec.name: spec for spec in inputs}
    _check_counts(request, len(inputs), len(outputs))
    is_raw, raw = bool(request.raw_input_contents), iter(request.raw_input_contents)
    feeds: dict[str, Array] = {}
    shared = SharedTensors({}, {})
    for number, given in enumerate(request.inputs):
        item = {
            "name": given.name,
            "datatype": given.datatype,
            "shape": list(given.shape),
            "parameters": parameters(given.parameters),
        }
        name = tensors.name_of(item, f"inputs[{number}]", known)
        if name in feeds or name in shared.inputs:
            raise RequestError(400, f"input {name!r}: given twice")
        what, asked = f"input {name!r}", item["parameters"]
        if (place := tensors.place_of(asked, "input", name, is_shared=is_shared)) is not None:
            if given.contents.ListFields():
                raise RequestError(400, f"{what}: contents together with shared memory")
            shared.inputs[name] = item, place
        elif is_raw:
            if given.contents.ListFields():
                raise RequestError(
                    400, f"input {name!r}: contents together with raw_input_contents"
                )
            feeds[name] = tensors.from_bytes(item, known[name], memoryview(next(raw)), limit)
        else:
            item["data"] = _values(given, known[name])
            feeds[name] = tensors.from_values(item, known[name], limit)
    wanted = [
        {"name": each.name, "parameters": parameters(each.parameters)} for each in request.outputs
    ]
    names, binary = tensors.wanted_outputs(
        {"outputs": wanted} if wanted else {}, {}, outputs, shared if is_shared else None
    )
    terms = read_terms(parameters(request.parameters))
    return InferRequest(request.id, feeds, names, binary, terms, tensors.any_of(shared))


def _check_counts(request: Any, inputs: int, outputs: int) -> None:
    """Refuse more than a model has before lists are made of it: the event loop waits for them."""
    sides = (("inputs", request.inputs, inputs), ("outputs", request.outputs, outputs))
    for what, given, most in sides:
        if len(given) > most:
            raise RequestError(400, f"{what}: the model has {most}, received {len(given)}")
    count = len(request.raw_input_contents)
    expected = sum("shared_memory_region" not in given.parameters for given in request.inputs)
    if count and count != expected:
        raise RequestError(400, f"raw_input_contents: expected {expected}, received {count}")
    for given in request.inputs:
        if len(given.shape) > tensors.MOST_AXES:
            raise RequestError(400, f"input {given.name!r}: shape: {len(given.shape)} sizes")


def _values(given: Any, spec: TensorSpec) -> list[Any]:
    field = _CONTENTS.get(tensors.datatype(spec))
    if field is None:
        raise RequestError(400, f"input {spec.name!r}: {given.datatype} travels as raw bytes only")
    others = [f.name for f, _ in given.contents.ListFields() if f.name != field]
    if others:
        raise RequestError(
            400, f"input {spec.name!r}: expected values in {field}, received {', '.join(others)}"
        )
    values = list(getattr(given.contents, field))
    if field != "bytes_contents":
        return values
    try:
        return [str(value, "utf-8") for value in values]
    except UnicodeDecodeError as e:
        raise RequestError(400, f"input {spec.name!r}: a text is not UTF-8") from e


def parameters(given: Any) -> dict[str, Any]:
    """Return parameters of a message by name.

    Raises:
        RequestError: there are too many.
    """
    if len(given) > _MOST_PARAMETERS:
        raise RequestError(400, f"parameters: at most {_MOST_PARAMETERS}, received {len(given)}")
    found = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        found[name] = None if kind is None else getattr(value, kind)
    return found
