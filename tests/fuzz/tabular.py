"""Readers of models of tables: trees, machines of support vectors and what stands next to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.convert.lower.tabular.tables import forest, new_forest
from tests.fuzz import mutate

if TYPE_CHECKING:
    from tests.fuzz.readers import Reader

_NUMBERS = [n for n in mutate.NUMBERS if -(2**63) <= n < 2**63]
_FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))
_LINES: dict[str, Any] = {
    "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 3.0],
    "support_vectors": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "rho": [0.1],
}


def readers() -> Iterator[Reader]:
    """Make it."""
    from tests.fuzz.readers import Reader, command

    check = command("check", "{}", "-t", "onnxruntime", "-t", "android")
    seeds = [model.SerializeToString() for model in _models()]
    yield Reader("tabular", ".onnx", seeds, [_in_attributes], [check])


def _models() -> Iterator[onnx.ModelProto]:
    rng = np.random.default_rng(0)
    trees = forest(rng, 3, lambda r, t: [0], depth=3)
    yield _model("TreeEnsembleRegressor", n_targets=1, **trees)
    classes = forest(rng, 3, lambda r, t: [t % 2], depth=3, kind="class")
    yield _model("TreeEnsembleClassifier", 2, classlabels_int64s=[0, 1], **classes)
    yield _model("TreeEnsemble", **new_forest(rng, 3, 1, np.float32, range(7)))
    yield _model("SVMRegressor", n_supports=2, coefficients=[1.0, -1.0], **_LINES)
    yield _model(
        "SVMClassifier",
        2,
        vectors_per_class=[1, 1],
        coefficients=[1.0, -1.0],
        classlabels_ints=[0, 1],
        **_LINES,
    )
    yield _model("LinearRegressor", coefficients=[1.0, 2.0, 3.0], intercepts=[0.5], targets=1)
    linear: dict[str, Any] = {"coefficients": [1.0] * 6, "intercepts": [0.5, 0.1]}
    yield _model("LinearClassifier", 2, classlabels_strings=["a", "b"], multi_class=1, **linear)
    yield _model("Scaler", offset=[1.0, 2.0, 3.0], scale=[1.0, 2.0, 3.0])
    yield _model("Normalizer", norm="L2")
    yield _model("Imputer", imputed_value_floats=[1.0], replaced_value_float=2.0)
    yield _model("Binarizer", threshold=0.5)
    yield _model("OneHotEncoder", cats_int64s=[1, 2, 3], zeros=1)
    yield _model("LabelEncoder", keys_floats=[1.0, 2.0], values_floats=[3.0, 4.0])


def _model(op: str, results: int = 1, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node, whose scores are a list of maps where it names classes."""
    domain = "ai.onnx.ml"
    names = ["y"] if results == 1 else ["label", "s"]
    nodes = [helper.make_node(op, ["x"], names, name="n", domain=domain, **attributes)]
    if results > 1:
        classes = {"classlabels_int64s": [0, 1]}
        nodes.append(helper.make_node("ZipMap", ["s"], ["y"], domain=domain, **classes))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    version = 5 if op == "TreeEnsemble" else 3
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, version)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _in_attributes(raw: bytes, rng: random.Random) -> bytes:
    """Change attributes of a node: drop one, or give its lists, numbers and texts other values."""
    model = onnx.load_from_string(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        node = rng.choice(model.graph.node)
        if not node.attribute:
            continue
        place = rng.randrange(len(node.attribute))
        attribute = node.attribute[place]
        match rng.randrange(8):
            case 0:
                del node.attribute[place]
            case 1:
                node.op_type = rng.choice(("ZipMap", "TreeEnsemble", "Scaler", "SVMRegressor"))
            case 2:
                del node.input[:]
            case _:
                _changed(attribute, rng)
    return bytes(model.SerializeToString())


def _changed(attribute: onnx.AttributeProto, rng: random.Random) -> None:
    for values, others in (
        (attribute.ints, _NUMBERS),
        (attribute.floats, _FLOATS),
        (attribute.strings, (b"", b"\xff", b"BRANCH_EQ", b"LEAF", b"x" * 3000)),
    ):
        if values:
            _in_list(values, rng, others)
            return
    if attribute.HasField("i"):
        attribute.i = rng.choice(_NUMBERS)
    elif attribute.HasField("f"):
        attribute.f = rng.choice(_FLOATS)
    elif attribute.HasField("s"):
        attribute.s = rng.choice((b"", b"\xff\xfe", b"POLY", b"SOFTMAX"))
    elif attribute.HasField("t"):
        attribute.t.dims[:] = [rng.choice(_NUMBERS)]


def _in_list(values: Any, rng: random.Random, others: Any) -> None:
    at = rng.randrange(len(values))
    match rng.randrange(4):
        case 0:
            del values[at]
        case 1:
            values.extend([values[at]] * rng.choice((1, 3, 300)))
        case 2:
            # Another of its own: trees that lead elsewhere.
            values[at] = rng.choice(values)
        case _:
            values[at] = rng.choice(others)
