"""Declared shapes that are false are replaced; true ones and their names stay."""

import os
import subprocess
import sys

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from edgeinfer.backends.process.isolation import IN_PROCESS
from edgeinfer.convert.sources import read, shapes_of_a_run
from edgeinfer.types import Dim


def shapes(text: str) -> tuple[list[tuple[Dim, ...]], list[str]]:
    source = read(onnx.parser.parse_model(text))
    found = []
    for value in source.model.graph.outputs:
        assert value.shape is not None
        found.append(tuple(d if isinstance(d, int) else d.value for d in value.shape))
    onnx.checker.check_model(ir.to_proto(source.model))
    return found, source.notes.lines


def header(inputs: str, outputs: str, body: str) -> str:
    return f'<ir_version: 8, opset_import: ["":17]> g ({inputs}) => ({outputs}) {{ {body} }}'


def test_true_declarations_stay() -> None:
    text = header("float[N, 3] x", "float[N, 3] y", "[n] y = Relu(x)")
    assert shapes(text) == ([("N", 3)], [])


def test_false_size_of_an_output() -> None:
    text = header("float[N, 3] x", "float[N, 4] y", "[n] y = Relu(x)")
    assert shapes(text) == (
        [("N", 3)],
        ["output 'y' is declared as [N, 4], the graph gives [?, 3]; replaced"],
    )


def test_false_rank_of_an_output() -> None:
    text = header("float[2, 3] x", "float[6] y", "[n] y = Relu(x)")
    assert shapes(text) == (
        [(2, 3)],
        ["output 'y' is declared as [6], the graph gives [2, 3]; replaced"],
    )


def test_false_shape_of_an_inner_tensor() -> None:
    model = onnx.parser.parse_model(
        header("float[2, 3] x", "float[2, 3] y", "[a] t = Relu(x) [b] y = Neg(t)")
    )
    info = onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [7, 3])
    model.graph.value_info.append(info)
    source = read(model)
    assert source.notes.lines == [
        "declared shapes of 1 inner tensors contradict the graph; replaced"
    ]
    inner = source.model.graph[0].outputs[0]
    assert inner.shape == ir.Shape([2, 3])


def test_false_size_that_only_a_run_can_tell() -> None:
    # The length of NonZero's result is known to nobody before it runs.
    body = "[a] t = NonZero(x) [b] y = Shape(t)"
    text = header("float[N] x", "int64[1, 5] t, int64[2] y", body)
    found, notes = shapes(text)
    assert found == [(1, None), (2,)]
    assert notes == ["output 't' is declared as [1, 5], a trial run gives [1, 0]; replaced"]


def test_false_batch_of_a_reshape() -> None:
    body = "[s] s = Shape(x) [r] y = Reshape(x, s)"
    found, notes = shapes(header("float[N, 4] x", "float[1, 4] y", body))
    assert found == [(None, 4)]
    assert notes == ["output 'y' is declared as [1, 4], a trial run gives [2, 4]; replaced"]


def test_rank_that_a_run_contradicts_is_unknown_when_data_may_decide_it() -> None:
    body = "[a] y = Unsqueeze(x, axes)"
    text = header("float[3] x, int64[1] axes", "float[3] y", body)
    source = read(onnx.parser.parse_model(text))
    assert source.model.graph.outputs[0].shape is None
    assert source.notes.lines == [
        "output 'y' is declared as [3], a trial run gives [1, 3]; replaced"
    ]


def test_trial_run_uses_equal_sizes_for_equal_names() -> None:
    # Add refuses sizes that differ, so nothing could be told if N were two sizes.
    body = "[a] t = Add(a, b) [s] s = Shape(t) [r] y = Reshape(t, s)"
    found, notes = shapes(header("float[N] a, float[N] b", "float[7] y", body))
    assert found == [(None,)]
    assert len(notes) == 1


def test_declaration_stays_where_no_run_is_possible() -> None:
    body = "[a] t = acme.Odd(x) [b] y = Neg(t)"
    text = header("float[N] x", "float[7] y", body).replace('"":17', '"":17, "acme":1')
    assert shapes(text) == ([(7,)], [])


def test_no_trial_run_for_a_huge_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes_of_a_run, "_PROBE_BYTES", 3)
    model = onnx.parser.parse_model(
        header(
            "float[N] x", "float[5] y", "[a] t = Add(x, w) [s] s = Shape(t) [b] y = Reshape(t, s)"
        )
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "w"))
    source = read(model)
    assert source.notes.lines == []
    assert source.model.graph.outputs[0].shape == ir.Shape([5])


def test_string_and_scalar_inputs_are_tried_too() -> None:
    body = "[i] t = Identity(s) [n] k = NonZero(x)"
    found, notes = shapes(header("string[N] s, float x", "string[N] t, int64[0, 9] k", body))
    assert found[0] == ("N",)
    assert len(notes) == 1


_LARGE = (
    # 16 GB, and a product of minutes.
    "[b] b = Constant <value = int64[1] {4000000000}> () [s] s = Add(n, b)"
    " [c] y = ConstantOfShape(s)",
    "[b] b = Constant <value = int64[2] {8000, 8000}> () [s] s = Add(n, b)"
    " [c] t = ConstantOfShape(s) [m] u = MatMul(t, t) [v] v = MatMul(u, t) [k] k = NonZero(v)"
    " [w] w = ReduceMax <keepdims = 0> (k) [d] d = Cast <to = 1> (w) [z] z = Constant <value = "
    "int64[1] {1}> () [y] y = Reshape(d, z)",
)

_MEASURED = """
import resource
from tests.convert.sources.test_declared import _LARGE, header, shapes
def used():
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_maxrss >> 10, own.ru_utime
# Whatever is imported is there by then.
shapes(header("int64[1] n", "float[5] y", "[c] y = ConstantOfShape(n)"))
for body in _LARGE:
    memory, seconds = used()
    found, notes = shapes(header("int64[1] n", "float[5] y", body))
    assert found == [(5,)] or notes, found
    memory, seconds = used()[0] - memory, used()[1] - seconds
    assert memory < 100, memory
    assert seconds < 20, seconds
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
assert 0 < children < 600, children
"""


def test_a_trial_run_takes_little_memory_and_time() -> None:
    """It is measured in a process of its own, whose children are no other test's."""
    own = {name: value for name, value in os.environ.items() if name != IN_PROCESS}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED], env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
