"""Names in an OpenVINO model: inputs and outputs as in the source, the rest numbered."""

from __future__ import annotations

import re
from typing import Any

import onnx_ir as ir

from edgeinfer.backends.engines import import_openvino


def restore_names(written: Any, source: ir.Model, read: ir.Model) -> Any:
    """Return the model with the source's inputs and outputs: their names, order and number.

    The reader drops inputs that it finds unused and folds ``Identity`` away, so an output may share
    its tensor, and the name of it, with an input or with another output. A dropped input comes
    back; a shared tensor gets an ``Identity`` in front of the output: one name, one tensor. It
    takes the place of casts of an input to other floats and back, which the plugin drops: it would
    write the output into the array that an earlier run of another size was given (2026.4.1).

    Args:
        written: what OpenVINO made.
        source: the model as the user knows it.
        read: the model that OpenVINO read.
    """
    openvino = import_openvino()
    opset16 = openvino.opset16

    values = _by_name(read)
    kept = {_input_behind(p.get_friendly_name(), values): p for p in written.get_parameters()}
    parameters = [
        kept.get(v.name or "") or opset16.parameter(_shape(v), _type(v))
        for v in source.graph.inputs
    ]
    taken = {_key(p.output(0)) for p in parameters}
    results = []
    for result in written.get_results():
        origin = _before_casts(result.input_value(0))
        if _key(origin) in taken:
            # A new result: the old one stays tied to the names of the tensor it shared.
            label = result.get_friendly_name()
            result = opset16.result(opset16.identity(origin))
            result.set_friendly_name(label)
            origin = result.input_value(0)
        taken.add(_key(origin))
        results.append(result)
    label, sinks = written.get_friendly_name(), written.get_sinks()
    model = openvino.Model(results, sinks, parameters, label)
    for value, parameter in zip(source.graph.inputs, parameters, strict=True):
        parameter.set_friendly_name(value.name or "")
        parameter.output(0).get_tensor().set_names({value.name or ""})
    for value, result in zip(source.graph.outputs, model.get_results(), strict=True):
        result.output(0).get_tensor().set_names({value.name or ""})
    return model


def _before_casts(origin: Any) -> Any:
    """Return the input that floats are only cast from and back, else what was given."""
    found = origin
    while found.get_node().get_type_name() == "Convert" and found.get_element_type().is_real():
        found = found.get_node().input_value(0)
    is_input = found.get_node().get_type_name() == "Parameter"
    return found if is_input and found.get_element_type() == origin.get_element_type() else origin


def _by_name(model: ir.Model) -> dict[str, ir.Value]:
    values = {v.name or "": v for v in model.graph.inputs}
    values.update({node.name or "": node.outputs[0] for node in model.graph})
    values.update({v.name or "": v for node in model.graph for v in node.outputs})
    return values


def _input_behind(name: str, values: dict[str, ir.Value]) -> str:
    """Follow a folded node's value back to the input that it passes on."""
    value = values.get(name)
    while value is not None and (node := value.producer()) is not None:
        value = node.inputs[0] if node.inputs else None
    return value.name or "" if value is not None else name


def _shape(value: ir.Value) -> Any:
    openvino = import_openvino()

    if value.shape is None:
        return openvino.PartialShape.dynamic()
    return openvino.PartialShape([d if isinstance(d, int) else -1 for d in value.shape])


def _type(value: ir.Value) -> Any:
    openvino = import_openvino()

    name = value.dtype.name if value.dtype is not None else "dynamic"
    return getattr(openvino.Type, _SPELLED.get(name) or f"{name[0]}{name.strip(_LETTERS)}".lower())


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SPELLED = {
    "FLOAT": "f32",
    "DOUBLE": "f64",
    "BFLOAT16": "bf16",
    "BOOL": "boolean",
    "STRING": "string",
    "dynamic": "dynamic",
}
"""OpenVINO's names of element types; the others are the first letter and the number of bits."""


def settle_names(written: Any) -> None:
    """Number generated names by position: OpenVINO counts them over the life of the process."""
    for index, node in enumerate(written.get_ordered_ops()):
        name = node.get_friendly_name()
        if re.fullmatch(re.escape(node.get_type_name()) + r"_\d+", name):
            node.set_friendly_name(f"{node.get_type_name()}_{index}")


def _key(output: Any) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()
