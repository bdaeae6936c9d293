"""Maps are cut off and strings are numbered where a model is read."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeinfer.convert import sources
from edgeinfer.convert.sources.onnx import read_model
from edgeinfer.convert.sources.tabular import cut_maps
from edgeinfer.errors import Remarks, SourceError
from tests.convert.lower.running import run

X = np.asarray([[1.0, -2.0], [-3.0, 0.5], [0.2, 0.1]], np.float32)
WORDS = ("no", "maybe", "yes")


def _classifier(**labels: Any) -> onnx.NodeProto:
    return helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=[1.0, 0.0, 0.0, 1.0, -1.0, -1.0],
        intercepts=[0.0, 0.1, 0.2],
        **labels,
    )


def _model(
    nodes: list[onnx.NodeProto],
    outputs: dict[str, onnx.TypeProto],
    constants: tuple[onnx.TensorProto, ...] = (),
    opsets: dict[str, int] | None = None,
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])]
    made = [helper.make_value_info(name, kind) for name, kind in outputs.items()]
    graph = helper.make_graph(nodes, "g", given, made, constants)
    versions = {"": 21, "ai.onnx.ml": 3} if opsets is None else opsets
    imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _tensor(kind: int) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(kind, None)


def _maps(key: int) -> onnx.TypeProto:
    one = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    return helper.make_sequence_type_proto(one)


TEXT, FLOAT, INT64 = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64


def test_a_map_is_cut_off_and_its_scores_have_its_name() -> None:
    zipped = helper.make_node(
        "ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_int64s=[3, 7, 9]
    )
    nodes = [_classifier(classlabels_ints=[3, 7, 9]), zipped]
    proto = _model(nodes, {"label": _tensor(INT64), "chances": _maps(INT64)})
    before = proto.SerializeToString()
    source = sources.read(proto)
    assert [v.name for v in source.model.graph.outputs] == ["label", "chances"]
    assert source.labels == ("3", "7", "9")
    assert any("ZipMap" in line for line in source.notes.lines)
    label, chances = run(source.model, {"x": X})
    plain = _model(
        [_classifier(classlabels_ints=[3, 7, 9])],
        {"label": _tensor(INT64), "scores": _tensor(FLOAT)},
    )
    want = run(sources.read(plain).model, {"x": X})
    np.testing.assert_array_equal(label, want[0])
    np.testing.assert_array_equal(chances, want[1])
    assert proto.SerializeToString() == before


def test_scores_that_are_an_output_already_keep_their_name() -> None:
    zipped = helper.make_node(
        "ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
    )
    outputs = {"scores": _tensor(FLOAT), "chances": _maps(INT64)}
    source = sources.read(_model([_classifier(classlabels_ints=[0, 1, 2]), zipped], outputs))
    scores, chances = run(source.model, {"x": X})
    np.testing.assert_array_equal(scores, chances)
    # Columns in the order of 0, 1, 2 need no names.
    assert source.labels == ()


def test_classes_that_are_strings_become_their_places() -> None:
    zipped = helper.make_node(
        "ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_strings=list(WORDS)
    )
    nodes = [_classifier(classlabels_strings=list(WORDS)), zipped]
    source = sources.read(_model(nodes, {"label": _tensor(TEXT), "chances": _maps(TEXT)}))
    assert source.labels == WORDS
    label, chances = run(source.model, {"x": X})
    assert label.dtype == np.int64
    np.testing.assert_array_equal(label, chances.argmax(1))
    assert any("'label': text" in line for line in source.notes.lines)


def test_strings_that_are_picked_and_compared_are_numbers_too() -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["names", "place"], ["p"], domain="ai.onnx.ml"),
        helper.make_node("Reshape", ["p", "flat"], ["label"]),
        helper.make_node("Equal", ["label", "which"], ["same"]),
        helper.make_node(
            "LabelEncoder",
            ["label"],
            ["price"],
            domain="ai.onnx.ml",
            keys_strings=["tea", "milk"],
            values_floats=[1.5, 2.5],
        ),
        helper.make_node(
            "CategoryMapper",
            ["label"],
            ["code"],
            domain="ai.onnx.ml",
            cats_strings=["milk", "tea"],
            cats_int64s=[70, 80],
        ),
    ]
    constants = (
        helper.make_tensor("names", TEXT, [2], [b"milk", b"tea"]),
        helper.make_tensor("flat", INT64, [1], [-1]),
        helper.make_tensor("which", TEXT, [1], [b"tea"]),
    )
    outputs = {
        "label": _tensor(TEXT),
        "same": _tensor(TensorProto.BOOL),
        "price": _tensor(FLOAT),
        "code": _tensor(INT64),
    }
    source = sources.read(_model(nodes, outputs, constants))
    label, same, price, code = run(source.model, {"x": X})
    words = [source.labels[i] for i in label]
    assert words == ["milk", "tea", "milk"]
    assert same.tolist() == [False, True, False]
    assert price.tolist() == [2.5, 1.5, 2.5]
    assert code.tolist() == [70, 80, 70]


def test_strings_that_come_in_stay_what_they_are() -> None:
    node = helper.make_node(
        "LabelEncoder",
        ["word"],
        ["code"],
        domain="ai.onnx.ml",
        keys_strings=["a", "b"],
        values_strings=["c", "d"],
    )
    given = [helper.make_tensor_value_info("word", TEXT, ["N"])]
    graph = helper.make_graph([node], "g", given, [helper.make_value_info("code", _tensor(TEXT))])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 2)]
    source = sources.read(helper.make_model(graph, opset_imports=imports, ir_version=9))
    assert source.labels == ()
    words = np.asarray(["a", "b"], object)
    assert run(source.model, {"word": words})[0].tolist() == ["c", "d"]


def test_maps_that_come_in_are_refused_by_name() -> None:
    node = helper.make_node(
        "DictVectorizer", ["m"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"]
    )
    kind = helper.make_map_type_proto(TEXT, helper.make_tensor_type_proto(FLOAT, None))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_value_info("m", kind)],
        [helper.make_tensor_value_info("y", FLOAT, [1, 2])],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 2)]
    with pytest.raises(SourceError, match="'m': a map is no tensor"):
        sources.read(helper.make_model(graph, opset_imports=imports, ir_version=9))


@pytest.mark.parametrize("opsets", [{"ai.onnx.ml": 1}, {"": 1, "ai.onnx.ml": 1}])
def test_a_default_domain_that_is_not_used_may_have_any_version(opsets: dict[str, int]) -> None:
    outputs = {"label": _tensor(INT64), "scores": _tensor(FLOAT)}
    source = sources.read(_model([_classifier(classlabels_ints=[0, 1, 2])], outputs, opsets=opsets))
    assert source.model.opset_imports[""] >= 7
    assert len(run(source.model, {"x": X})) == 2


def test_an_old_operator_is_still_refused() -> None:
    # BatchNormalization was another one before version 7.
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])
    ones = [helper.make_tensor(n, FLOAT, [2], [1.0, 1.0]) for n in "sbmv"]
    proto = _model([node], {"y": _tensor(FLOAT)}, tuple(ones), {"": 6})
    with pytest.raises(SourceError, match="opset 6"):
        sources.read(proto)


def equations(matrix: Any, times: int = 1, **flags: int) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(matrix.dtype)
    nodes = [
        helper.make_node("Solve", ["a", "b"], [f"x{i}"], domain="com.microsoft", **flags)
        for i in range(times)
    ]
    size = len(matrix)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("b", kind, [size, None])],
        [helper.make_tensor_value_info(n.output[0], kind, [size, None]) for n in nodes],
        [onnx.numpy_helper.from_array(matrix, "a")],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("flags", [{}, {"transposed": 1}, {"lower": 1}])
def test_equations_with_a_known_matrix_are_a_product(flags: dict[str, int]) -> None:
    random = np.random.default_rng(0)
    matrix = random.standard_normal((4, 4)).astype(np.float32) + 4 * np.eye(4, dtype=np.float32)
    read = sources.read(equations(matrix, **flags))
    b = random.standard_normal((4, 3)).astype(np.float32)
    (found,) = run(read.model, {"b": b})
    solved = np.tril(matrix) if flags.get("lower") else matrix
    solved = solved.T if flags.get("transposed") else solved
    np.testing.assert_allclose(found, np.linalg.solve(solved, b), rtol=1e-4, atol=1e-5)
    assert any("its matrix is known" in line for line in read.notes.lines)


def test_what_keys_tell_the_type_of_is_stated_before_onnx_looks() -> None:
    trees = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["path"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[4.0, 7.0],
    )
    label = helper.make_node(
        "LabelEncoder",
        ["path"],
        ["y"],
        domain="ai.onnx.ml",
        keys_floats=[4.0, 7.0],
        values_int64s=[40, 70],
        default_int64=-1,
    )
    proto = _model([trees, label], {"y": _tensor(INT64)}, opsets={"": 5, "ai.onnx.ml": 2})
    before = proto.SerializeToString()
    (found,) = run(sources.read(proto).model, {"x": np.array([[0, 0], [1, 0]], np.float32)})
    assert found.ravel().tolist() == [40, 70]
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(
    ("inputs", "outputs", "labels", "text"),
    [
        ([], ["y"], [b"a"], "no map of one value"),
        (["x"], [], [b"a"], "no map of one value"),
        (["x"], ["y"], [b"\xff\xfe"], "can't decode byte 0xff"),
    ],
)
def test_a_map_that_is_none_is_refused(
    inputs: list[str], outputs: list[str], labels: list[bytes], text: str
) -> None:
    """They were faults of the program."""
    more: dict[str, Any] = {"classlabels_strings": labels}
    cut = helper.make_node("ZipMap", inputs, outputs, domain="ai.onnx.ml", **more)
    nodes = [cut, *([] if outputs else [helper.make_node("Identity", ["x"], ["y"])])]
    with pytest.raises(SourceError, match=text):
        read_model(_model(nodes, {"y": _tensor(TensorProto.FLOAT)}))


def test_many_maps_take_time_that_grows_with_them() -> None:
    """Each went over the whole graph."""

    def taken(count: int) -> float:
        names = [f"z{i}" for i in range(count)]
        more: dict[str, Any] = {"classlabels_int64s": [0, 1]}
        nodes = [
            helper.make_node("ZipMap", ["x"], [name], domain="ai.onnx.ml", **more) for name in names
        ]
        model = _model(nodes, {name: _maps(TensorProto.INT64) for name in names})
        started = time.thread_time()
        cut_maps(model, "m", Remarks())
        return time.thread_time() - started

    taken(10)
    assert taken(4000) < 4 * taken(1000) * 2 + 0.2


def test_equations_that_a_product_does_not_solve_stay() -> None:
    almost = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-6]], np.float32)
    for matrix in (almost, np.array([[2, 1], [1, 1]], np.int64)):
        assert [node.op_type for node in sources.read(equations(matrix)).model.graph] == ["Solve"]


def test_one_matrix_has_one_inverse() -> None:
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)
    found = sources.read(equations(matrix, times=3)).model
    assert [node.op_type for node in found.graph] == ["MatMul"] * 3
    assert len({node.inputs[0] for node in found.graph}) == 1
