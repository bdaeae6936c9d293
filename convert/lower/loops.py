"""What a Scan states, and shapes inside loops that general inference cannot see."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.inference import infer


class ScanForm:
    """Attributes of a Scan, with what counts where they are left out."""

    def __init__(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        scanned = node.attributes["num_scan_inputs"].as_int()
        self.states = len(node.inputs) - scanned
        made = len(body.outputs) - self.states

        def option(name: str, length: int) -> list[int]:
            found = node.attributes.get(name)
            return list(found.as_ints()) if found is not None else [0] * length

        self.axes = option("scan_input_axes", scanned)
        self.back = option("scan_input_directions", scanned)
        self.out_axes = option("scan_output_axes", made)
        self.out_back = option("scan_output_directions", made)


def settle_loops(model: ir.Model) -> None:
    """Set, in place, what is known of the inputs of loop bodies.

    The iteration number and the condition are scalars by definition. A carried value keeps the
    shape it starts with if one step keeps it: that is assumed, inferred through the body, and taken
    back where the step gives another shape.
    """
    loops = [node for _, node in walk(model) if node.op_type == "Loop" and not node.domain]
    if not loops:
        return
    assumed: list[tuple[ir.Graph, ir.Value, ir.Value]] = []
    for node in loops:
        body = node.attributes["body"].as_graph()
        for value, dtype in zip(body.inputs, (ir.DataType.INT64, ir.DataType.BOOL), strict=False):
            value.type = ir.TensorType(dtype)
            if value.shape is None:
                value.shape = ir.Shape([])
        for start, value, after in zip(
            node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False
        ):
            if value.shape is not None or start is None or start.shape is None:
                continue
            if value.type is not None:
                value.shape = ir.Shape(start.shape)
                assumed.append((body, value, after))
    infer(model)
    wrong = {body for body, value, after in assumed if not _same(value.shape, after.shape)}
    if not wrong:
        return
    for body, value, _ in assumed:
        if body in wrong:
            value.shape = None
    for body in wrong:
        _forget(body)
    infer(model)


def _same(before: ir.Shape | None, after: ir.Shape | None) -> bool:
    return before is not None and after is not None and tuple(before) == tuple(after)


def _forget(body: ir.Graph) -> None:
    """Drop the shapes that followed from an assumption."""
    for node in body.all_nodes():
        for value in node.outputs:
            value.shape = None
