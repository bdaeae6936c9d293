"""Models of a few bytes that ask for work without end, or lack what every stage relies on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer as group
from edgeinfer.convert.sources import limits, read
from edgeinfer.convert.sources.onnx import read_model
from edgeinfer.errors import SourceError

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Save = Callable[..., Path]


def _value(name: str, kind: int = FLOAT, shape: Any = (2,)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(
        nodes: list[Any], inputs: Any = None, outputs: Any = None, functions: Any = ()
    ) -> Path:
        inputs = [_value("x")] if inputs is None else inputs
        outputs = [_value("y")] if outputs is None else outputs
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        graph = helper.make_graph(nodes, "g", inputs, outputs)
        model = helper.make_model(
            graph, opset_imports=opsets, functions=list(functions), ir_version=8
        )
        onnx.save(model, str(tmp_path / "m.onnx"))
        return tmp_path / "m.onnx"

    return write


def _functions(count: int, calls: int = 2) -> list[Any]:
    """Functions that each call the one before several times."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    found = []
    for i in range(count):
        names = ["a", *(f"t{c}" for c in range(calls - 1)), "b"]
        op, domain = ("Neg", "") if i == 0 else (f"F{i - 1}", "local")
        nodes = [
            helper.make_node(op, [names[c]], [names[c + 1]], domain=domain) for c in range(calls)
        ]
        found.append(helper.make_function("local", f"F{i}", ["a"], ["b"], nodes, opsets))
    return found


def _loop(count: int | None, body_condition: str = "Identity", given: str = "") -> list[Any]:
    condition = {
        "Identity": helper.make_node("Identity", ["c"], ["go"]),
        "Less": helper.make_node("Less", ["i", "most"], ["go"]),
    }[body_condition]
    constant = helper.make_tensor("v", INT64, [], [3])
    nodes = [helper.make_node("Constant", [], ["most"], value=constant), condition]
    nodes.append(helper.make_node("Neg", ["v"], ["w"]))
    body = helper.make_graph(
        nodes,
        "body",
        [_value("i", INT64, ()), _value("c", BOOL, ()), _value("v")],
        [_value("go", BOOL, ()), _value("w")],
    )
    turns = (
        []
        if count is None
        else [
            helper.make_node(
                "Constant", [], ["n"], value=helper.make_tensor("n", INT64, [], [count])
            )
        ]
    )
    first = "" if count is None else "n"
    return [*turns, helper.make_node("Loop", [first, given, "x"], ["y"], body=body)]


@pytest.mark.parametrize("command", ["inspect", "check", "convert"])
def test_functions_that_grow_without_end_are_refused(
    save: Save, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save([helper.make_node("F29", ["x"], ["y"], domain="local")], functions=_functions(30))
    assert path.stat().st_size < 4000
    target = [] if command == "inspect" else ["-t", "cpu"]
    assert guarded(group, [command, str(path), *target]) == 1
    assert "its functions call each other so often" in capsys.readouterr().err


def test_functions_that_end_are_read(save: Save) -> None:
    path = save([helper.make_node("F9", ["x"], ["y"], domain="local")], functions=_functions(10))
    assert read(path).model.graph.outputs[0].name == "y"


def test_functions_in_a_circle_are_no_hang(save: Save) -> None:
    functions = _functions(3)
    functions[0].node[0].op_type, functions[0].node[0].domain = "F2", "local"
    read(save([helper.make_node("F2", ["x"], ["y"], domain="local")], functions=functions))


@pytest.mark.parametrize("count", [1 << 62, 10**9, 10**8, 4 * 10**6, None])
def test_a_loop_that_nothing_ends_is_refused(save: Save, count: int | None) -> None:
    with pytest.raises(SourceError, match=r"with Loop '.*' its loops take more than \d+ steps"):
        read(save(_loop(count)))


def test_loops_in_each_other_multiply(save: Save) -> None:
    inner = _loop(1 << 20)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c2"], ["go2"]),
            *inner[:-1],
            helper.make_node("Loop", ["n", "", "v2"], ["w2"], body=inner[-1].attribute[0].g),
        ],
        "outer",
        [_value("i2", INT64, ()), _value("c2", BOOL, ()), _value("v2")],
        [_value("go2", BOOL, ()), _value("w2")],
    )
    turns = helper.make_tensor("m", INT64, [], [1 << 20])
    nodes = [
        helper.make_node("Constant", [], ["m"], value=turns),
        helper.make_node("Loop", ["m", "", "x"], ["y"], body=body),
    ]
    with pytest.raises(SourceError, match="its loops take more than"):
        read(save(nodes))


def _nested(depth: int, count: int) -> list[Any]:
    """Functions whose loop calls the one before in each turn."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    found = []
    for i in range(depth):
        *before, loop = _loop(count)
        body = loop.attribute[0].g
        if i:
            body.node[-1].CopyFrom(helper.make_node(f"L{i - 1}", ["v"], ["w"], domain="local"))
        found.append(helper.make_function("local", f"L{i}", ["x"], ["y"], [*before, loop], opsets))
    return found


def test_loops_in_functions_that_loops_call_multiply(save: Save) -> None:
    call = [helper.make_node("L2", ["x"], ["y"], domain="local")]
    with pytest.raises(SourceError, match="its loops take more than"):
        read(save(call, functions=_nested(3, 2000)))
    read(save(call, functions=_nested(3, 50)))


def test_loops_after_each_other_add_up(save: Save) -> None:
    calls = [
        helper.make_node("L1", [f"t{i}" if i else "x"], [f"t{i + 1}"], domain="local")
        for i in range(300)
    ]
    calls.append(helper.make_node("Identity", ["t300"], ["y"]))
    read(
        save(
            [*calls[:100], helper.make_node("Identity", ["t100"], ["y"])],
            functions=_nested(2, 100),
        )
    )
    with pytest.raises(SourceError, match="its loops take more than"):
        read(save(calls, functions=_nested(2, 150)))


def test_a_loop_that_its_condition_may_end_is_read(save: Save) -> None:
    read(save(_loop((1 << 63) - 1, "Less")))
    read(save(_loop(1000)))


def test_the_evaluation_of_a_loop_gives_up_in_time(save: Save) -> None:
    from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator

    source = read(save(_loop(2_000_000)))
    with pytest.raises(CannotEvaluate, match="took too long"):
        Evaluator(source.model, wide=False).run({"x": np.zeros(2, np.float32)}, seconds=0.2)


def test_long_names_and_many_tensors_are_refused(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * (limits.MOST_NAME + 1)
    with pytest.raises(SourceError, match=r"the name 'x+'… has \d+ characters"):
        read(save([helper.make_node("Neg", [long], ["y"])], [_value(long)]))
    monkeypatch.setattr(limits, "MOST_TENSORS", 3)
    names = [f"x{i}" for i in range(4)]
    with pytest.raises(SourceError, match="has 4 inputs, at most 3 are read"):
        read(save([helper.make_node("Sum", names, ["y"])], [_value(n) for n in names]))


def test_a_size_below_zero_is_told(save: Save) -> None:
    source = read(save([helper.make_node("Neg", ["x"], ["y"])], [_value("x", FLOAT, (-5, 2))]))
    assert any("sizes below zero taken for open ones ('x')" in n for n in source.notes.lines)
    shape = source.model.graph.inputs[0].shape
    assert shape is not None
    assert not isinstance(shape[0], int)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.int32_data.extend([1, 2]), "lies in int32_data, of its type it is in float"),
        (lambda t: t.dims.append(2), "has 2 elements, its sizes say 4"),
        (lambda t: t.dims.append(-1), r"has the sizes \[2, -1\]"),
        (lambda t: setattr(t, "raw_data", bytes(7)), "has 7 bytes, its sizes say 8"),
    ],
)
def test_a_constant_whose_data_does_not_fit_is_refused(
    save: Save, edit: Callable[[Any], object], words: str
) -> None:
    tensor = helper.make_tensor("w", FLOAT, (2,), [1.0, 2.0])
    if "bytes" in words:
        del tensor.float_data[:]
    edit(tensor)
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor)]
    with pytest.raises(SourceError, match=words):
        read(save([*nodes, helper.make_node("Add", ["x", "w"], ["y"])]))


def _trees(yes: list[int], numbers: list[int], trees: list[int]) -> Any:
    """Return nodes that each lead to one only; those that lead to themselves are leaves."""
    count = len(yes)
    leaves = [i for i in range(count) if yes[i] == i]
    return helper.make_node(
        *("TreeEnsembleRegressor", ["x"], ["y"], "n"),
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=trees,
        nodes_nodeids=numbers,
        nodes_featureids=[0] * count,
        nodes_values=[0.5] * count,
        nodes_modes=["LEAF" if yes[i] == i else "BRANCH_LEQ" for i in range(count)],
        nodes_truenodeids=[numbers[y] for y in yes],
        nodes_falsenodeids=[numbers[y] for y in yes],
        target_treeids=[trees[i] for i in leaves],
        target_nodeids=[numbers[i] for i in leaves],
        target_ids=[0] * len(leaves),
        target_weights=[1.0] * len(leaves),
    )


def _of_trees(node: Any) -> onnx.ModelProto:
    ends = [_value("x", shape=(None, 1))], [_value("y", shape=(None, 1))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", *ends)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_trees_without_an_end_are_refused() -> None:
    """An engine that goes along them by calls ended the process."""
    deep = 3000
    chain = [*range(1, deep), deep - 1]
    with pytest.raises(SourceError, match="a tree of more than 2000 levels"):
        read_model(_of_trees(_trees(chain, [*range(deep)], [0] * deep)))
    with pytest.raises(SourceError, match="in a circle"):
        read_model(_of_trees(_trees([1, 2, 0, 3], [*range(4)], [0] * 4)))
    # Each other node begins a tree: all of them go along the same way.
    yes = [y for i in range(1000) for y in (min(2 * i + 2, 1998), 2 * i + 1)]
    numbers = [n for i in range(1000) for n in (i, i)]
    with pytest.raises(SourceError, match="many ways lead to one"):
        read_model(_of_trees(_trees(yes, numbers, [0, 1] * 1000)))
    chain = [*range(1, 1500), 1499]
    read_model(_of_trees(_trees(chain, [*range(1500)], [0] * 1500)))


def test_an_engine_that_somebody_built_is_no_source(tmp_path: Path) -> None:
    x, y = _value("x", FLOAT), _value("y", FLOAT)
    blob = helper.make_node("EPContext", ["x"], ["y"], name="b", domain="com.microsoft")
    function = helper.make_function(
        "f", "F", ["x"], ["y"], [blob], [helper.make_opsetid("com.microsoft", 1)]
    )
    call = helper.make_node("F", ["x"], ["y"], domain="f")
    inside = helper.make_graph([blob], "b", [], [y])
    condition = helper.make_node("If", ["c"], ["y"], then_branch=inside, else_branch=inside)
    truth = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    opsets = [helper.make_opsetid(d, 1) for d in ("com.microsoft", "f")]
    for node, functions in ((blob, []), (call, [function]), (condition, [])):
        graph = helper.make_graph([node], "g", [x], [y], [truth])
        model = helper.make_model(
            graph, functions=functions, opset_imports=[helper.make_opsetid("", 17), *opsets]
        )
        with pytest.raises(SourceError, match=r"EPContext \('b'.* which is machine code"):
            read_model(model)
        onnx.save(model, tmp_path / "m.onnx")
        with pytest.raises(SourceError, match="give the model that it was built from"):
            read(tmp_path / "m.onnx")
