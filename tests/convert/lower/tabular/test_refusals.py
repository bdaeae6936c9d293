"""Forms of tables' operators that have no definition say why."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx import helper

from edgeinfer.convert.lower.tabular import undefined
from tests.convert.lower.tabular.tables import TREE


def test_trees_for_more_targets_than_a_table_holds_are_refused() -> None:
    values: dict[str, Any] = {
        **TREE,
        "target_weights": [4.0, 7.0],
    }

    def refusal(**more: Any) -> str:
        made = helper.make_node(
            "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **{**values, **more}
        )
        node = ir.from_proto(made)
        node.inputs[0].type, node.inputs[0].shape = (
            ir.TensorType(ir.DataType.FLOAT),
            ir.Shape([1, 1]),
        )
        return undefined(node)

    assert refusal(n_targets=1) == ""
    assert "3 nodes have 400000000 targets" in refusal(n_targets=400_000_000)
    assert "do not go together" in refusal(nodes_modes=["BRANCH_LEQ"], n_targets=1)
