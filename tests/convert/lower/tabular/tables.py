"""Builds models of one operator of ``ai.onnx.ml``, with forests and samples made at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.types import Array
from tests.convert.lower.running import run

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")

Ids = Callable[[np.random.Generator, int], Sequence[int]]
"""Targets of a leaf, by the number of its tree."""


def one_node(op: str, x: Array, outputs: Any = 1, *, ml: Any = 3, **attributes: Any) -> ir.Model:
    """Return a model of one operator, with an open number of rows."""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attributes)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    given = [helper.make_tensor_value_info("x", kind, ["N", *x.shape[1:]])]
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name=n) for n in names])
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.ml", ml)]
    made: ir.Model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))
    return made


def defined(model: ir.Model) -> ir.Model | None:
    """Return the model with definitions for its operators; None where one has none."""
    whole = model.clone()
    InferShapes()(whole)
    own = [n for _, n in walk(whole) if n.domain]
    return whole if len(expand(whole, own)) == len(own) else None


def check_definition(model: ir.Model, x: Array, tolerance: float = 1e-5) -> None:
    """Compare the definition with ONNX Runtime's own kernel: values, types and declared shapes."""
    made = defined(model)
    assert made is not None
    assert not [n for _, n in walk(made) if n.domain]
    want, found = run(model, {"x": x}), run(made, {"x": x})
    for a, b, value in zip(want, found, made.graph.outputs, strict=True):
        assert a.dtype == b.dtype
        assert value.shape is not None
        assert len(value.shape) == a.ndim
        for size, declared in zip(a.shape, value.shape, strict=True):
            assert not isinstance(declared, int) or declared == size
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(b, a)


def samples(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Make rows that often equal a threshold, with NaN and both infinities."""
    whole, others = rng.integers(-2, 3, (rows, columns)), rng.standard_normal((rows, columns))
    x = np.where(rng.random((rows, columns)) < 0.5, whole, others).astype(np.float32)
    x[rng.random(x.shape) < 0.15] = np.nan
    x[0, 0], x[1, 0] = np.inf, -np.inf
    return x


def forest(
    rng: np.random.Generator,
    columns: int,
    ids: Ids,
    *,
    kind: str = "target",
    trees: int = 4,
    depth: int = 4,
    modes: Sequence[str] = MODES,
    missing: bool = False,
    negative: bool = True,
) -> dict[str, Any]:
    """Return the attributes of a forest of the operators up to version 4.

    Args:
        rng: source of all randomness.
        columns: of the samples.
        ids: what targets a leaf has weights of.
        kind: ``target`` or ``class``, as the operator names them.
        trees: how many.
        depth: comparisons on the longest way; zero makes every tree a leaf.
        modes: comparisons to choose from.
        missing: whether NaN goes to either side, node by node.
        negative: whether weights may be negative.
    """
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    nodes: dict[str, list[Any]] = {n: [] for n in (*names, "missing_value_tracks_true")}
    weights: dict[str, list[Any]] = {n: [] for n in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        waiting, following = [(0, 0)], 1
        while waiting:
            number, level = waiting.pop(0)
            is_leaf = level >= depth or (level > 0 and rng.random() < 0.25)
            whole = rng.random() < 0.5
            value = float(rng.integers(-2, 3)) if whole else float(rng.standard_normal())
            row = (tree, number, int(rng.integers(columns)), str(rng.choice(modes)), value)
            ends = (following, following + 1)
            if is_leaf:
                row, ends = (tree, number, 0, "LEAF", 0.0), (0, 0)
            for name, entry in zip(names, (*row, *ends), strict=True):
                nodes[name].append(entry)
            nodes["missing_value_tracks_true"].append(int(missing and rng.random() < 0.5))
            if not is_leaf:
                waiting += [(following, level + 1), (following + 1, level + 1)]
                following += 2
                continue
            for target in ids(rng, tree):
                weight = float(np.float32(rng.standard_normal()))
                entry = (tree, number, target, weight if negative else abs(weight))
                for name, one in zip(weights, entry, strict=True):
                    weights[name].append(one)
    own = {f"nodes_{name}": values for name, values in nodes.items()}
    return own | {f"{kind}_{name}": values for name, values in weights.items()}


def new_forest(
    rng: np.random.Generator, columns: int, targets: int, dtype: Any, modes: Sequence[int]
) -> dict[str, Any]:
    """Return the attributes of a TreeEnsemble; mode 6 asks for the members of a set."""
    names = ("featureids", "splits", "modes", "missing_value_tracks_true")
    sides = ("truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    nodes: dict[str, list[Any]] = {n: [] for n in (*names, *sides)}
    leaves: list[tuple[int, float]] = []
    sets: dict[int, list[float]] = {}

    def grow(level: int) -> int:
        number = len(nodes["modes"])
        mode = int(rng.choice(modes))
        row = (int(rng.integers(columns)), float(rng.integers(-2, 3)), mode, int(rng.integers(2)))
        for name, entry in zip(nodes, (*row, 0, 0, 0, 0), strict=True):
            nodes[name].append(entry)
        if mode == 6:
            sets[number] = rng.choice(np.arange(-3, 40), 4, replace=False).astype(float).tolist()
        for side in ("true", "false"):
            is_leaf = level == 1 or rng.random() < 0.25
            if is_leaf:
                leaves.append((int(rng.integers(targets)), float(rng.standard_normal())))
            end = len(leaves) - 1 if is_leaf else grow(level - 1)
            nodes[f"{side}nodeids"][number], nodes[f"{side}leafs"][number] = end, int(is_leaf)
        return number

    roots = [grow(3) for _ in range(3)]
    members = [v for n in sorted(sets) for v in (*sets[n], np.nan)]
    made: dict[str, Any] = {f"nodes_{n}": v for n, v in nodes.items()}
    made["nodes_splits"] = numpy_helper.from_array(np.asarray(nodes["splits"], dtype))
    made["nodes_modes"] = numpy_helper.from_array(np.asarray(nodes["modes"], np.uint8))
    made["leaf_targetids"] = [t for t, _ in leaves]
    made["leaf_weights"] = numpy_helper.from_array(np.asarray([w for _, w in leaves], dtype))
    if members:
        made["membership_values"] = numpy_helper.from_array(np.asarray(members, dtype))
    return {**made, "tree_roots": roots, "n_targets": targets}


TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
}
"""A question and two leaves of one target, without their weights."""
