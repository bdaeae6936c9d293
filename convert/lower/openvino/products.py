"""Give products of integers a bias, as the plugin needs one.

OpenVINO 2026.4.1, on one thread, gives unwritten memory for a product of up to 8 rows with stored
integers that has no bias, or one bias for all channels, and is rounded again: two such products in
a row are 10^8 off. With a bias for each channel, and be it next to nothing, it is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.backends.engines import import_openvino

_NOTHING = np.float32(1e-30)
"""Too little to change a sum, and no zero, which would be left out."""


def give_biases(written: Any) -> int:
    """Add them in place.

    Given: ``y = MatMul(x, Convert(integers) * scale)``
    Result: ``y = MatMul(x, Convert(integers) * scale) + [1e-30, 0, 0, ...]``

    Returns:
        How many products have a bias for it.
    """
    opset, count = import_openvino().opset13, 0
    for node in written.get_ordered_ops():
        if node.get_type_name() != "MatMul" or not _is_stored(node.input_value(1)):
            continue
        if not node.output(0).get_element_type().is_real():
            # Sums of integers are exact.
            continue
        shape = node.output(0).get_partial_shape()
        if shape.rank.is_dynamic or shape[len(shape) - 1].is_dynamic:
            continue
        width = shape[len(shape) - 1].get_length()
        if width < 2:
            # One channel has one bias.
            continue
        bias = _bias(node.output(0))
        values = np.zeros(width, np.float32)
        place = node.output(0)
        if bias is not None:
            values, place = np.broadcast_to(bias[1], (width,)).copy(), bias[0].output(0)
        if np.ptp(values) != 0.0:
            continue
        readers = list(place.get_target_inputs())
        more = np.zeros((1,) * (len(shape) - 1) + (width,), np.float32)
        more.flat[0] = max(_NOTHING, np.spacing(np.abs(values[0])))
        if bias is not None:
            more += values
            place = node.output(0)
        made = opset.add(place, opset.constant(more))
        _rename(bias[0] if bias is not None else node, made)
        for reader in readers:
            reader.replace_source_output(made.output(0))
        count += 1
    return count


def _rename(old: Any, made: Any) -> None:
    """Let the sum be called what it stands for."""
    output = old.output(0)
    name, names = old.get_friendly_name(), set(output.get_names())
    output.set_names(set())
    made.output(0).set_names(names)
    old.set_friendly_name(f"{name}/WithoutBiases")
    made.set_friendly_name(name)


def _is_stored(output: Any) -> bool:
    """Whether weights are made of integers."""
    node = output.get_node()
    while node.get_type_name() in ("Multiply", "Subtract", "Convert", "Transpose", "Reshape"):
        source = node.input_value(0)
        node = source.get_node()
        if node.get_type_name() == "Constant":
            return str(source.get_element_type().get_type_name()) in ("i8", "u8")
    return False


def _bias(output: Any) -> tuple[Any, npt.NDArray[np.float32]] | None:
    """Return the sum that alone reads a product, and the constant in it."""
    users = [target.get_node() for target in output.get_target_inputs()]
    if len(users) != 1 or users[0].get_type_name() != "Add":
        return None
    for value in users[0].input_values():
        node = value.get_node()
        if node.get_type_name() == "Constant":
            array = np.asarray(node.data, np.float32)
            flat = array.ravel()
            last = array.shape[-1] if array.ndim else 1
            return (users[0], flat) if flat.size == last else None
    return None
