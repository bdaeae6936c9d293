"""Corrections that need OpenVINO's own operators, made after its reader ran."""

from __future__ import annotations

from typing import Any

from edgeinfer.backends.engines import import_openvino


def repair(written: Any) -> None:
    """Make ``TopK`` keep the lower index of equal values, as ONNX demands."""
    opset14 = import_openvino().opset14

    for node in written.get_ordered_ops():
        if node.get_type_name() != "TopK":
            continue
        given = node.get_attributes()
        if given.get("stable") or given.get("sort") == "none":
            continue
        stable = opset14.topk(
            node.input_value(0),
            node.input_value(1),
            int(given["axis"]),
            given["mode"],
            "value",
            index_element_type=given["index_element_type"],
            stable=True,
        )
        stable.set_friendly_name(node.get_friendly_name())
        for old, new in zip(node.outputs(), stable.outputs(), strict=True):
            for target in list(old.get_target_inputs()):
                target.replace_source_output(new)
