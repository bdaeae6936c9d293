"""Passes never change numbers: the ONNX node suite through each of them, on ONNX Runtime.

A case runs before and after in ONNX Runtime without optimisation. Results must be equal bit for
bit, or, where a fusion or another version's kernel computes in another order, within the case's
own tolerance. Cases that ONNX Runtime cannot run as given are no part of this suite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert import passes
from edgeinfer.convert.lower.onnxruntime.faster import silu_by_sigmoid
from edgeinfer.convert.passes import OPSET, normalise, pass_name
from edgeinfer.convert.passes.infra import all_nodes, is_op
from edgeinfer.convert.passes.opset import OLDEST, RaiseOpset
from edgeinfer.convert.passes.shapes import InferShapes
from tests.conformance.node_cases import Case, suite

NO_KERNEL = {
    "RoiAlign": "onnxruntime 1.32 has kernels up to opset 21 only",
    "Bernoulli": "is a function of RandomUniformLike, which has kernels up to opset 21 only",
}
RUN = 26
"""The opset up to which ONNX Runtime 1.30, the oldest that converts, runs models."""

MAY_ROUND = frozenset(
    {
        *(pass_name(p) for p in passes.FUSIONS),
        "raise_opset",
    }
)
"""Passes that compute in another order; all others must be exact."""


def _run(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    data = proto.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}))


def _feeds(case: Case) -> dict[str, Any]:
    names = [i.name for i in case.model.graph.input]
    return dict(zip(names, case.data_sets[0][0], strict=False))


@cache
def _runnable(step: int = 1) -> tuple[tuple[Case, list[Any]], ...]:
    """One case of so many, if ONNX Runtime runs it as given, with what it computes."""
    found = []
    for case in suite()[::step]:
        try:
            found.append((case, _run(case.model, _feeds(case))))
        # One class per status in ONNX Runtime, none of them a common base.
        except Exception:
            continue
    return tuple(found)


def _opset(case: Case) -> int:
    return next((o.version for o in case.model.opset_import if o.domain == ""), 0)


def _difference(old: Any, new: Any, case: Case | None) -> str:
    """What differs; empty when nothing does. Without a case, every bit counts."""
    if isinstance(old, list):
        if not isinstance(new, list) or len(old) != len(new):
            return "other sequence"
        return next(
            (d for a, b in zip(old, new, strict=True) if (d := _difference(a, b, case))), ""
        )
    if old is None or new is None:
        return "" if old is new else "present or not"
    a, b = np.asarray(old), np.asarray(new)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{a.shape} became {b.dtype}{b.shape}"
    if a.dtype.kind in "OSU":
        return "" if a.tolist() == b.tolist() else "other strings"
    if a.tobytes() == b.tobytes():
        return ""
    close = case is not None and a.dtype.kind == "f"
    if close and case is not None and np.allclose(a, b, case.rtol, case.atol, equal_nan=True):
        return ""
    return f"values differ by up to {_largest(a, b)}"


def _largest(a: Any, b: Any) -> float:
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0.0))


def _compare(case: Case, before: list[Any], model: ir.Model, exact: bool) -> str:
    """Check the interface, run, compare; returns what is wrong."""
    for node in all_nodes(model):
        if is_op(node, "Swish"):
            # ONNX Runtime has no kernel for it; its lowering writes it like this.
            silu_by_sigmoid(model, node)
    proto = ir.to_proto(model)
    for side in ("input", "output"):
        old = [v.name for v in getattr(case.model.graph, side)]
        new = [v.name for v in getattr(proto.graph, side)]
        if old != new:
            return f"{side}s {old} became {new}"
    try:
        onnx.checker.check_model(proto)
        after = _run(proto, _feeds(case))
    except Exception as e:
        return f"does not run any more: {e}"
    return _difference(before, after, None if exact else case)


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.sweep)])
def test_normalise_keeps_every_number(step: int) -> None:
    wrong = {}
    for case, before in _runnable(step):
        if problem := _compare(case, before, normalise(ir.from_proto(case.model)).model, False):
            wrong[case.name] = problem
    assert wrong == {}
    assert sum(_opset(case) <= RUN for case, _ in _runnable(step)) > 1320 / step - 20


def _every_pass() -> Sequence[ir.passes.PassBase]:
    unique = {pass_name(p): p for stage in passes.NORMALISE for p in stage.passes}
    return list(unique.values())


@pytest.mark.slow
@pytest.mark.parametrize("one", _every_pass(), ids=pass_name)
def test_each_pass_alone_keeps_every_number(one: ir.passes.PassBase) -> None:
    exact = pass_name(one) not in MAY_ROUND
    wrong = {}
    for case, before in _runnable():
        model = ir.from_proto(case.model)
        InferShapes()(model)
        op = case.model.graph.node[0].op_type if case.model.graph.node else ""
        one(model)
        if isinstance(one, RaiseOpset) and op in NO_KERNEL:
            continue
        if problem := _compare(case, before, model, exact):
            wrong[case.name] = problem
    assert wrong == {}


def _older(step: int) -> Iterator[tuple[Case, int, onnx.ModelProto, list[Any]]]:
    """Each of so many single-node cases at every older opset that can express it."""
    history: dict[str, list[int]] = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history[schema.name].append(schema.since_version)
    for case in suite()[::step]:
        version = _opset(case)
        if len(case.model.graph.node) != 1 or case.model.graph.node[0].op_type in NO_KERNEL:
            continue
        versions = history[case.model.graph.node[0].op_type]
        for older in sorted({max(OLDEST, v) for v in versions if v < min(version, OPSET)}):
            proto = onnx.ModelProto()
            proto.CopyFrom(case.model)
            for imported in proto.opset_import:
                if imported.domain == "":
                    imported.version = older
            try:
                onnx.checker.check_model(proto)
                yield case, older, proto, _run(proto, _feeds(case))
            except Exception:
                continue


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.sweep)])
def test_older_versions_of_each_operator_are_raised_to_the_same_numbers(step: int) -> None:
    wrong, tried = {}, 0
    for case, version, proto, before in _older(step):
        model = ir.from_proto(proto)
        InferShapes()(model)
        if not RaiseOpset(OPSET)(model).modified:
            wrong[case.name, version] = "is not raised"
        elif problem := _compare(case, before, model, False):
            wrong[case.name, version] = problem
        tried += _opset(case) <= RUN
    assert wrong == {}
    assert tried > 1270 / step - 30
