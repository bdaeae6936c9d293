"""Small random graphs through passes, Core ML lowering and the evaluator, next to ONNX Runtime.

A graph has three to six operators, of families drawn with their attributes at random; every other
one leaves its first axis open and runs at two sizes of it.

Usage: python -m tests.conformance.coreml_fuzz FIRST COUNT
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Rng = np.random.Generator
OPSET = 18

SAFE = ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Erf", "Softplus", "Elu", "HardSwish", "Selu")
SAFER = (
    "LeakyRelu",
    "HardSigmoid",
    "Softsign",
    "Celu",
    "Identity",
    "Sin",
    "Atan",
    "ThresholdedRelu",
)
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")
MORE_REDUCTIONS = ("ReduceSumSquare", "ReduceLogSumExp", "ReduceProd")


def run_onnxruntime(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Without its own optimisation, which is wrong for some of these graphs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, feeds)
    return outputs


class Unfit(Exception):  # noqa: N818
    """The operator that was drawn does not take the tensor at hand."""


@dataclass
class Graph:
    """A graph in the making; every value is computed as it is added, so that shapes are known."""

    rng: Rng
    x: np.ndarray
    is_open: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        node = helper.make_node(op, inputs, [name], name=name, **attributes)
        given = {n: self.values[n] for n in inputs if n in self.values}
        kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in given.items()],
            [onnx.ValueInfoProto(name=name)],
            [w for w in self.weights if w.name in inputs],
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
        )
        try:
            (made,) = run_onnxruntime(model.SerializeToString(), given)
        except Exception as e:
            raise Unfit(str(e)) from e
        if made.size == 0 or made.size > 20000 or made.ndim > 5:
            raise Unfit("no elements, or too many")
        if made.dtype.kind == "f" and (not np.isfinite(made).all() or np.abs(made).max() > 1e4):
            raise Unfit("large")
        self.nodes.append(node)
        self.values[name] = made
        return name

    def model(self, output: str) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(self.x.dtype)
        shape: list[Any] = list(self.x.shape)
        made = self.values[output]
        out: list[Any] | None = list(made.shape)
        if self.is_open:
            shape[0], out = "n", None
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            [helper.make_tensor_value_info("x", kind, shape)],
            [
                helper.make_tensor_value_info(
                    output, helper.np_dtype_to_tensor_dtype(made.dtype), out
                )
            ],
            self.weights,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
        )


def _unary(g: Graph, v: str) -> str:
    return g.add(str(g.rng.choice([*SAFE, *SAFER])), [v])


def _binary(g: Graph, v: str) -> str:
    a = g.values[v]
    op = str(g.rng.choice(["Add", "Sub", "Mul", "Max", "Min", "Div", "PRelu"]))
    shape = [d if g.rng.random() < 0.6 else 1 for d in a.shape]
    if g.is_open and shape:
        shape[0] = 1
    cut = int(g.rng.integers(0, len(shape) + 1))
    other = g.rng.uniform(0.5, 2, shape[cut:]) * g.rng.choice([-1, 1], shape[cut:])
    pair = [v, g.constant(other)]
    if op != "PRelu" and g.rng.random() < 0.3:
        pair.reverse()
        if op == "Div":
            raise Unfit("a quotient near zero")
    return g.add(op, pair)


def _together(g: Graph, v: str) -> str:
    a = g.values[v]
    others = [n for n, b in g.values.items() if b.shape == a.shape and n != v]
    if not others:
        raise Unfit("no other value of that shape")
    op = str(g.rng.choice(["Add", "Sub", "Mul", "Max", "Min", "Concat"]))
    pair = [v, str(g.rng.choice(others))]
    if op == "Concat":
        low = 1 if g.is_open else 0
        if a.ndim <= low:
            raise Unfit("no axis to join along")
        return g.add(op, pair, axis=int(g.rng.integers(low, a.ndim)))
    return g.add(op, pair)


def _reduce(g: Graph, v: str) -> str:
    a = g.values[v]
    count = int(g.rng.integers(1, a.ndim + 1)) if a.ndim else 0
    axes = sorted(g.rng.choice(a.ndim, count, replace=False).tolist()) if a.ndim else []
    axes = [x - a.ndim if g.rng.random() < 0.3 else x for x in axes]
    op = str(g.rng.choice([*REDUCTIONS, *MORE_REDUCTIONS]))
    return g.add(op, [v, g.constant(axes, np.int64)], keepdims=int(g.rng.integers(0, 2)))


def _softmax(g: Graph, v: str) -> str:
    rank = g.values[v].ndim
    if not rank:
        raise Unfit("a scalar")
    op = str(g.rng.choice(["Softmax", "LogSoftmax", "CumSum", "LpNormalization", "Hardmax"]))
    axis = int(g.rng.integers(-rank, rank))
    if op == "CumSum":
        flags = {"exclusive": int(g.rng.integers(0, 2)), "reverse": int(g.rng.integers(0, 2))}
        return g.add(op, [v, g.constant(axis, np.int64)], **flags)
    return g.add(op, [v], axis=axis)


def _norm(g: Graph, v: str) -> str:
    a, rng = g.values[v], g.rng
    op = str(rng.choice(["LayerNormalization", "BatchNormalization", "InstanceNormalization"]))
    if op == "LayerNormalization":
        if not a.ndim:
            raise Unfit("a scalar")
        axis = int(rng.integers(1 if g.is_open and a.ndim > 1 else 0, a.ndim))
        if a[(0,) * axis].size < 3:
            raise Unfit("a variance of next to nothing")
        scale = g.constant(rng.uniform(0.5, 1.5, a.shape[axis:]))
        return g.add(op, [v, scale, g.constant(rng.normal(size=a.shape[axis:]))], axis=axis)
    if a.ndim < (2 if op == "BatchNormalization" else 3):
        raise Unfit("no channels")
    size = a.shape[1]
    if op == "InstanceNormalization" and a[0, 0].size < 3:
        raise Unfit("a variance of next to nothing")
    stats = [rng.uniform(0.5, 1.5, size), rng.normal(size=size)]
    if op == "BatchNormalization":
        stats += [rng.normal(size=size), rng.uniform(0.5, 1.5, size)]
    return g.add(op, [v, *(g.constant(s) for s in stats)])


def _move(g: Graph, v: str) -> str:
    a, rng = g.values[v], g.rng
    op = str(rng.choice(["Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Tile"]))
    if op == "Transpose":
        if not a.ndim:
            raise Unfit("a scalar")
        return g.add(op, [v], perm=[int(p) for p in rng.permutation(a.ndim)])
    if op == "Reshape":
        flat = [int(a.shape[0]), -1] if a.ndim and not g.is_open else [-1]
        if g.is_open:
            flat = [0, -1] if rng.random() < 0.7 else [-1]
        elif a.ndim > 1 and rng.random() < 0.5:
            flat = [*(int(d) for d in a.shape[:-2]), -1]
        return g.add(op, [v, g.constant(flat, np.int64)])
    if op == "Unsqueeze":
        return g.add(op, [v, g.constant([int(rng.integers(0, a.ndim + 1))], np.int64)])
    if op == "Squeeze":
        ones = [i for i, d in enumerate(a.shape) if d == 1 and (i or not g.is_open)]
        if not ones:
            raise Unfit("no axis of 1")
        return g.add(op, [v, g.constant([int(rng.choice(ones))], np.int64)])
    if op == "Flatten":
        return g.add(op, [v], axis=int(rng.integers(0, a.ndim + 1)))
    repeats = rng.integers(1, 3, a.ndim)
    return g.add(op, [v, g.constant(repeats, np.int64)])


def _cut(g: Graph, v: str) -> str:
    a, rng = g.values[v], g.rng
    low = 1 if g.is_open else 0
    if a.ndim <= low:
        raise Unfit("no axis to cut")
    axis = int(rng.integers(low, a.ndim))
    size = a.shape[axis]
    match str(rng.choice(["Slice", "Gather", "Pad", "TopK", "Split"])):
        case "Slice":
            step = int(rng.choice([1, 1, 2, -1, -2]))
            ends = sorted(rng.integers(0, size + 1, 2).tolist(), reverse=step < 0)
            if step < 0:
                ends = [ends[0] - 1, -(2**31) if rng.random() < 0.5 else ends[1] - 1 - size]
                if ends[0] < 0:
                    raise Unfit("begins before the first")
            elif rng.random() < 0.3:
                ends = [ends[0] - size if ends[0] else 0, 2**63 - 1]
            row = [[ends[0]], [ends[1]], [axis], [step]]
            return g.add("Slice", [v, *(g.constant(r, np.int64) for r in row)])
        case "Gather":
            shape = [(), (2,), (2, 2)][int(rng.integers(0, 3))]
            where = rng.integers(-size, size, shape)
            return g.add("Gather", [v, g.constant(where, np.int64)], axis=axis)
        case "TopK":
            count = int(rng.integers(1, size + 1))
            flags = {"axis": axis, "largest": int(rng.integers(0, 2))}
            return g.add("TopK", [v, g.constant([count], np.int64)], **flags)
        case "Split":
            if size < 2:
                raise Unfit("one only")
            parts = [int(rng.integers(1, size))]
            parts.append(size - parts[0])
            return g.add("Split", [v, g.constant(parts, np.int64)], axis=axis)
    mode = str(rng.choice(["constant", "reflect", "edge", "wrap"]))
    pads = np.zeros((2, a.ndim), np.int64)
    pads[:, axis] = rng.integers(0, max(1, min(size, 3)), 2)
    if mode == "constant" and rng.random() < 0.3:
        pads[0, axis] = -min(size - 1, 1)
    inputs = [v, g.constant(pads.ravel(), np.int64)]
    return g.add("Pad", [*inputs, g.constant(1.5)] if mode == "constant" else inputs, mode=mode)


def _window(g: Graph, v: str) -> dict[str, Any]:
    rng, spatial = g.rng, g.values[v].ndim - 2
    if spatial not in (1, 2, 3):
        raise Unfit("no image")
    kernel = [int(rng.integers(1, 4)) for _ in range(spatial)]
    found: dict[str, Any] = {"kernel_shape": kernel}
    found["strides"] = [int(rng.integers(1, 4)) for _ in range(spatial)]
    if rng.random() < 0.3:
        found["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        found["pads"] = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
    return found


def _conv(g: Graph, v: str) -> str:
    a, rng, found = g.values[v], g.rng, _window(g, v)
    channels = a.shape[1]
    if rng.random() < 0.4:
        found["dilations"] = [int(rng.integers(1, 3)) for _ in found["strides"]]
    group = int(rng.choice([d for d in range(1, channels + 1) if channels % d == 0]))
    out = group * int(rng.integers(1, 3))
    shape = (out, channels // group, *found["kernel_shape"])
    op = str(rng.choice(["Conv", "Conv", "ConvTranspose"]))
    if op == "ConvTranspose":
        shape = (channels, out // group, *found["kernel_shape"])
    weights = [g.constant(0.5 * rng.standard_normal(shape))]
    if rng.random() < 0.5:
        weights.append(g.constant(rng.standard_normal(out)))
    return g.add(op, [v, *weights], group=group, **found)


def _pool(g: Graph, v: str) -> str:
    rng, found = g.rng, _window(g, v)
    op = str(rng.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"]))
    if op.startswith("Global"):
        return g.add(op, [v])
    if "pads" in found:
        found["ceil_mode"] = int(rng.integers(0, 2))
    if op == "AveragePool":
        found["count_include_pad"] = int(rng.integers(0, 2))
    return g.add(op, [v], **found)


def _resize(g: Graph, v: str) -> str:
    a, rng = g.values[v], g.rng
    if a.ndim not in (3, 4):
        raise Unfit("no image")
    mode = str(rng.choice(["nearest", "linear", "cubic"]))
    how = str(rng.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
    sizes = [*a.shape[:2], *(int(rng.integers(1, 2 * d + 2)) for d in a.shape[2:])]
    found: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        found["nearest_mode"] = str(rng.choice(["floor", "ceil", "round_prefer_floor"]))
    if g.is_open or rng.random() < 0.4:
        scales = [1, 1, *(float(rng.choice([0.5, 1, 2, 3])) for _ in a.shape[2:])]
        return g.add("Resize", [v, "", g.constant(scales)], **found)
    return g.add("Resize", [v, "", "", g.constant(sizes, np.int64)], **found)


def _product(g: Graph, v: str) -> str:
    a, rng = g.values[v], g.rng
    if a.ndim < 2:
        raise Unfit("no matrix")
    inner, wide = a.shape[-1], int(rng.integers(1, 5))
    if a.ndim == 2 and rng.random() < 0.4:
        flip = int(rng.integers(0, 2))
        weight = rng.standard_normal((wide, inner) if flip else (inner, wide))
        extra = [g.constant(rng.standard_normal([(), (wide,), (1, wide)][int(rng.integers(0, 3))]))]
        return g.add("Gemm", [v, g.constant(weight), *extra], alpha=0.5, beta=2.0, transB=flip)
    shape = (inner, wide) if rng.random() < 0.7 else (inner,)
    return g.add("MatMul", [v, g.constant(0.5 * rng.standard_normal(shape))])


FAMILIES: tuple[Callable[[Graph, str], str], ...] = (
    *(_unary, _binary, _together, _reduce, _softmax, _norm, _move, _move, _cut, _cut, _conv),
    *(_pool, _resize, _product),
)


def draw(seed: int) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A model, and inputs for it."""
    rng = np.random.default_rng(seed)
    rank = int(rng.choice([1, 2, 3, 4, 4, 5]))
    shape = tuple(int(d) for d in rng.integers(1, 7, rank))
    is_open = bool(seed % 2)
    x = rng.standard_normal(shape).astype(np.float32)
    g = Graph(rng, x, is_open, values={"x": x})
    wanted, value = int(rng.integers(3, 7)), "x"
    for _ in range(60):
        weights = len(g.weights)
        try:
            family = FAMILIES[int(rng.integers(0, len(FAMILIES)))]
            value = family(g, value)
        except Unfit:
            del g.weights[weights:]
            continue
        if len(g.nodes) == wanted:
            break
    feeds = [x]
    if is_open:
        feeds.append(rng.standard_normal((shape[0] + 2, *shape[1:])).astype(np.float32))
    return g.model(value), feeds


def outcome(seed: int) -> str:
    """Return ``right``, ``refused: ...``, ``wrong: ...`` or ``error: ...``."""
    from edgeinfer.errors import UnsupportedError
    from tests.conformance.lowered_worker import coreml_package

    model, feeds = draw(seed)
    with tempfile.TemporaryDirectory() as folder:
        try:
            ready = coreml_package(model, Path(folder), {})
        except UnsupportedError as e:
            return f"refused: {e.problems[0].op}: {e.problems[0].detail}"
        except Exception as e:
            return f"error: {type(e).__name__}: {' '.join(str(e).split())[:300]}"
        for x in feeds:
            try:
                (want,) = run_onnxruntime(model.SerializeToString(), {"x": x})
            except Exception:
                # At another size the graph is not one that ONNX Runtime takes.
                continue
            try:
                got = next(iter(ready.run({"x": x}).values()))
            except Exception as e:
                return f"error: {type(e).__name__}: {' '.join(str(e).split())[:300]}"
            found = _difference(want, got)
            if found:
                return f"wrong: {found}"
    return "right"


def _difference(want: np.ndarray, got: np.ndarray) -> str:
    if want.shape != got.shape or want.dtype != got.dtype:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    scale = max(1e-3, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
    if np.allclose(got, want, rtol=1e-4, atol=2e-5 * scale, equal_nan=True):
        return ""
    return f"up to {np.nanmax(np.abs(got - want)):.3g} next to {scale:.3g}"


def described(model: onnx.ModelProto) -> str:
    """The graph as text, for a message."""
    text = onnx.printer.to_text(model.graph)
    return " ".join(text.split())[:1500]


def run(first: int, count: int) -> dict[int, str]:
    """The outcomes of as many graphs."""
    warnings.simplefilter("ignore")
    return {seed: outcome(seed) for seed in range(first, first + count)}


def main(first: int, count: int) -> None:
    """Print what is neither right nor refused, and the numbers."""
    for seed in range(first, first + count):
        found = outcome(seed)
        TOTALS[found.split(":")[0]] += 1
        if found != "right":
            print(seed, found, flush=True)  # noqa: T201
        if found.startswith(("wrong", "error")):
            print("   ", described(draw(seed)[0]), flush=True)  # noqa: T201
    print(dict(TOTALS))  # noqa: T201


TOTALS: Counter[str] = Counter()

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), int(sys.argv[2]))
