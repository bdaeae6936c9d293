"""Write a ``.tflite`` file op by op, read it, and compare what was read with LiteRT on the file.

def build(g): ...  # takes a ``Graph`` with its inputs set, sets its outputs
same(build, x=np.ones((1, 2), np.float32))
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort

from edgeinfer.convert.lower.tflite.graph import Graph, Tensor, TensorQuantization
from edgeinfer.convert.lower.tflite.writer import write
from edgeinfer.convert.sources.tflite import TfliteSource, read_file
from edgeinfer.convert.verify.locate import save_for_engines
from tests.convert.lower.tflite.run import outputs as run_litert

Array = npt.NDArray[Any]
Build = Callable[..., Tensor | list[Tensor]]


def rng() -> np.random.Generator:
    """The numbers of a test."""
    return np.random.default_rng(0)


def floats(*shape: int) -> Array:
    """Normal float32 numbers."""
    return rng().standard_normal(shape).astype(np.float32)


def scale(values: Any, zero: Any = 0, axis: int = 0) -> TensorQuantization:
    """Scales of a tensor."""
    factors = np.atleast_1d(np.asarray(values, np.float32))
    return TensorQuantization(
        factors, np.broadcast_to(np.asarray(zero, np.int64), factors.shape), axis
    )


def written(
    path: Path,
    build: Build,
    feeds: dict[str, Array],
    *,
    scales: dict[str, TensorQuantization] | None = None,
    sizes: dict[str, tuple[int | None, ...]] | None = None,
) -> Path:
    """Write a file whose inputs are like the feeds, with other sizes where they are given."""
    g = Graph()
    for name, value in feeds.items():
        shape = (sizes or {}).get(name, value.shape)
        tensor = g.tensor(shape, value.dtype, name)
        tensor.quantization = (scales or {}).get(name)
        g.inputs.append(tensor)
    made = build(g, *g.inputs)
    g.outputs = made if isinstance(made, list) else [made]
    names = [f"y{i}" for i in range(len(g.outputs))]
    write(g, path, input_names=list(feeds), output_names=names)
    return path


def run_onnx(model: ir.Model, feeds: dict[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime computes, unoptimised."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = save_for_engines(model, Path(folder))
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(None, feeds), strict=True))


def same(
    build: Build,
    *more: dict[str, Array],
    rtol: float = 1e-5,
    steps: int = 0,
    scales: dict[str, TensorQuantization] | None = None,
    sizes: dict[str, tuple[int | None, ...]] | None = None,
    **feeds: Array,
) -> TfliteSource:
    """Check that what was read computes what LiteRT computes from the file.

    Args:
        build: makes the graph.
        *more: further feeds, of other sizes.
        rtol: of the largest magnitude.
        steps: by how much integers may differ.
        scales: of quantized inputs.
        sizes: of inputs, None for those that a run decides.
        **feeds: the inputs.

    Returns:
        What was read.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "m.tflite", build, feeds, scales=scales, sizes=sizes)
        found = read_file(path)
        for one in (feeds, *more):
            want = run_litert(path, one, xnnpack=False)
            got = run_onnx(found.model, one)
            assert list(got) == list(want)
            for name, value in want.items():
                _close(got[name], value, rtol, steps, name)
    return found


def _close(got: Array, want: Array, rtol: float, steps: int, name: str) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), name
    if want.dtype.kind in "iu":
        worst = np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0)
        assert worst <= steps, f"{name}: off by {worst}"
    elif want.dtype.kind == "b":
        np.testing.assert_array_equal(got, want, name)
    else:
        finite = np.abs(want[np.isfinite(want)])
        atol = rtol * float(finite.max(initial=0))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=name)


def ops(model: ir.Model) -> list[str]:
    """Operators of the main graph."""
    return [n.op_type for n in model.graph]
