"""Names in an OpenVINO model: inputs and outputs as in the source, all others the same every time."""

from __future__ import annotations

import re
from typing import Any

import onnx_ir as ir


def restore_names(written: Any, source: ir.Model) -> None:
    """Give inputs and outputs the source's names, in the source's order.

    The reader folds ``Identity`` away, so an output may share its tensor with an input or with
    another output. Those get a conversion to their own type in front: one name, one tensor.
    """
    from openvino import opset14

    inputs = [v.name or "" for v in source.graph.inputs]
    outputs = [v.name or "" for v in source.graph.outputs]
    parameters = {p.get_friendly_name(): p for p in written.get_parameters()}
    ordered = [parameters[name] for name in inputs if name in parameters]
    taken = {_key(p.output(0)) for p in ordered}
    for result in written.get_results():
        origin = result.input_value(0)
        if _key(origin) in taken:
            apart = opset14.convert(origin, origin.get_element_type().get_type_name())
            result.input(0).replace_source_output(apart.output(0))
            origin = apart.output(0)
        taken.add(_key(origin))
    for parameter in ordered:
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    for name, result in zip(outputs, written.get_results(), strict=True):
        result.output(0).get_tensor().set_names({name})


def settle_names(written: Any) -> None:
    """Number generated names by position: OpenVINO counts them over the life of the process."""
    for index, node in enumerate(written.get_ordered_ops()):
        name = node.get_friendly_name()
        if re.fullmatch(re.escape(node.get_type_name()) + r"_\d+", name):
            node.set_friendly_name(f"{node.get_type_name()}_{index}")


def _key(output: Any) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()
