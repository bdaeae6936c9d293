"""scikit-learn's ``KNNImputer`` as tensors of known ranks.

skl2onnx writes each column as a function whose ranks depend on which rows have a donor; a sample
without any value ends ONNX Runtime's run there. The columns' operands say all that it takes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.passes.control_flow import connect
from edgeinfer.convert.passes.infra import Namer
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.errors import Remarks
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_COLUMN = "knn_imputer_column"
_OPERANDS = (
    *("i_col", "x", "dist_chunk", "non_missing_fix_x", "mask_fit_x", "dist_idx_map", "mask"),
    *("row_missing_idx", "_fit_x", "n_neighbors"),
)
_SINCE = 13
"""The opset from which sums take their axes as an operand."""

_FAR = 3e38
"""The distance to what shares no value with a sample."""


@dataclass(frozen=True, slots=True)
class _Column:
    """What a call imputes.

    Attributes:
        samples: (rows, columns), as given.
        place: Position of the column.
        rows: (donors, columns) of the training data that have a value there.
        mean: Mean of the column.
        count: Number of neighbours.
    """

    samples: ir.Value
    place: int
    rows: Array
    mean: float
    count: int


def settle_imputers(model: ir.Model, notes: Remarks) -> None:
    """Write the columns of ``KNNImputer``, in place, as distances to all donors and a TopK."""
    if model.opset_imports.get("", 0) < _SINCE:
        return
    calls = [
        n for n in model.graph if n.op_type == _COLUMN and n.op_identifier() in model.functions
    ]
    read = [(node, column) for node in calls if (column := _read(model, node)) is not None]
    if not calls or len(read) < len(calls):
        return
    clean: dict[ir.Value, ir.Value] = {}
    for node, column in read:
        build = builder(model, node)
        # What the call before has given, which is another value by now.
        made = _impute(build, column, node.inputs[1], clean)
        made.type, made.shape = column.samples.type, column.samples.shape
        build.insert(model.graph, node)
        connect(node, [made], Namer(model))
    # What looked for rows without a value would end runs still.
    RemoveUnusedNodesPass()(model)
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    notes.add(f"KNNImputer: {len(read)} columns by distances to all rows of its training data")


def _read(model: ir.Model, node: ir.Node) -> _Column | None:
    given = [v.name for v in model.functions[node.op_identifier()].inputs]
    if tuple(given) != _OPERANDS or any(v is None for v in node.inputs):
        return None
    named = dict(zip(_OPERANDS, node.inputs, strict=True))
    known = {
        name: None if value is None else ir.convenience.get_const_tensor(value)
        for name, value in named.items()
    }
    mask = named["mask"]
    asked = None if mask is None else mask.producer()
    samples = asked.inputs[0] if asked is not None and asked.op_type == "IsNaN" else None
    place, fit, count = (known[n] for n in ("i_col", "_fit_x", "n_neighbors"))
    if place is None or fit is None or count is None or samples is None:
        return None
    data, column = fit.numpy(), int(place.numpy().reshape(-1)[0])
    rows = data[~np.isnan(data[:, column])]
    neighbours = min(int(count.numpy().reshape(-1)[0]), len(rows))
    mean = float(rows[:, column].astype(np.float64).mean()) if len(rows) else 0.0
    return _Column(samples, column, rows, mean, neighbours)


def _impute(
    build: ReplacementBuilder,
    column: _Column,
    before: ir.Value | None,
    clean: dict[ir.Value, ir.Value],
) -> ir.Value:
    """Return the samples with one more column imputed.

    Result::

        both = Mul(Unsqueeze(present), there); apart = Mul(Sub(Unsqueeze(clean), donors), both)
        d = Where(common > 0, Div(Mul(ReduceSum(Mul(apart, apart)), columns), common), far)
        near, which = TopK<largest=0>(d, k); taken = Cast(Less(near, far))
        y = Where(And(IsNaN(x), column), Where(Any(taken), Mean(donors, taken), mean), before)
    """
    x, kind, width = column.samples, column.rows.dtype, column.rows.shape[1]

    def const(value: object, hint: str, dtype: object = kind) -> ir.Value:
        return build.const(np.asarray(value, dtype), hint)  # type: ignore[call-overload]

    def total(value: ir.Value, axis: int, keep: int = 0) -> ir.Value:
        return build.op("ReduceSum", value, const([axis], "axis", np.int64), keepdims=keep)

    one, zero, far = const(1, "one"), const(0, "zero"), const(_FAR, "far")
    missing = build.op("IsNaN", x)
    if x not in clean:
        clean[x] = build.op("Where", missing, zero, x)
    kept = clean[x] if before is x else before
    here = const(np.arange(width) == column.place, "column", bool)
    if not column.count:
        # Of a column without any value scikit-learn makes zeros, or it is cut off behind.
        return build.op("Where", here, zero, kept)
    number = ir.DataType.from_numpy(kind).value
    present = build.op("Cast", build.op("Not", missing), to=number)
    middle = const([1], "middle", np.int64)
    there = const(~np.isnan(column.rows), "there")
    donors = const(np.nan_to_num(column.rows, nan=0.0), "donors")
    both = build.op("Mul", build.op("Unsqueeze", present, middle), there)
    apart = build.op("Sub", build.op("Unsqueeze", clean[x], middle), donors)
    apart = build.op("Mul", apart, both)
    common = total(both, 2)
    scaled = build.op("Mul", total(build.op("Mul", apart, apart), 2), const(width, "width"))
    distance = build.op("Div", scaled, build.op("Max", common, one))
    distance = build.op("Where", build.op("Greater", common, zero), distance, far)
    node = ir.node(
        "TopK",
        [distance, const([column.count], "neighbours", np.int64)],
        {"axis": 1, "largest": 0},
        num_outputs=2,
        name=build.nodes[0].name,
    )
    build.nodes.append(node)
    near, which = node.outputs
    taken = build.op("Cast", build.op("Less", near, far), to=number)
    values = build.op("Gather", const(column.rows[:, column.place], "values"), which)
    count = total(taken, 1, 1)
    mean = build.op("Div", total(build.op("Mul", values, taken), 1, 1), build.op("Max", count, one))
    found = build.op("Where", build.op("Greater", count, zero), mean, const(column.mean, "mean"))
    return build.op("Where", build.op("And", missing, here), found, kept)
