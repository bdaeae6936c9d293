from __future__ import annotations

import importlib
import inspect

import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.registry import Driver, Registry
from edgeinfer.convert.lower.signature import REQUIRED, FormalInput, of_operator, of_schema
from edgeinfer.convert.passes import OPSET
from edgeinfer.errors import UnsupportedError
from tests.convert.lower.test_registry import Toy, model

FLOATS = frozenset({ir.DataType.FLOAT})


def test_a_signature_is_the_schemas() -> None:
    clip, concat = of_schema("Clip"), of_schema("Concat")
    assert [i.name for i in clip.inputs if not i.required] == ["min", "max"]
    assert concat.inputs == (FormalInput("inputs", required=False, variadic=True),)
    assert concat.attributes == {"axis": REQUIRED}
    assert of_schema("Attention").attributes["scale"] is None


def test_functions_that_no_schema_fits_are_errors() -> None:
    own = Registry("own", dtypes=FLOATS)
    with pytest.raises(ValueError, match="reads \\['beta'\\], which the schema lacks"):

        @own.lower("Softmax")
        def _(g: Toy, x: str, *, beta: float) -> str: ...  # type: ignore[empty-body]

    with pytest.raises(ValueError, match="Concat: takes"):

        @own.lower("Concat")
        def _(g: Toy, inputs: str, *, axis: int) -> str: ...  # type: ignore[empty-body]


def _refusals(attributes: str) -> list[str]:
    own = Registry("own", dtypes=FLOATS)
    own.lower("GroupNormalization")(lambda g, x, scale, bias: x)
    text = f"""g (float[1,2,4] x) => (float[1,2,4] y) <float[2] s = {{1, 1}}> {{
        y = GroupNormalization<num_groups = 2{attributes}>(x, s, s) }}"""
    with pytest.raises(UnsupportedError) as caught:
        Driver(own, Toy()).run(model(text))
    return [p.detail for p in caught.value.problems]


def test_attributes_that_nobody_reads_are_refused() -> None:
    assert _refusals("") == ["num_groups=2"]
    assert _refusals(", epsilon = 0.5") == ["num_groups=2", "epsilon=0.5"]


def test_attributes_without_effect_need_not_be_read() -> None:
    assert _refusals(", stash_type = 1") == ["num_groups=2"]


@pytest.mark.parametrize("target", ["coreai", "coreml", "tflite", "tvm"])
def test_newer_schemas_only_add_attributes(target: str) -> None:
    try:
        importlib.import_module(f"edgeinfer.convert.lower.{target}.ops")
    except ImportError as e:
        pytest.skip(str(e))
    registry = importlib.import_module(f"edgeinfer.convert.lower.{target}.registry").OPS
    for entry in registry:
        try:
            raised = onnx.defs.get_schema(entry.op, OPSET, "")
        except onnx.defs.SchemaError:
            continue
        names = [i.name for i in raised.inputs]
        assert [i.name for i in entry.signature.inputs] == names[: len(entry.signature.inputs)]
        old = of_schema(entry.op, version=OPSET).attributes
        assert {n: entry.signature.attributes[n] for n in old} == old


def test_an_attribute_of_a_newer_standard_has_the_default_of_its_parameter() -> None:
    """onnx 1.19 knows no ``mode`` of SpaceToDepth, and no converter could be imported with it."""
    named = [
        inspect.Parameter("alpha", inspect.Parameter.KEYWORD_ONLY),
        inspect.Parameter("newer", inspect.Parameter.KEYWORD_ONLY, default="DCR"),
    ]
    inputs = [inspect.Parameter("X", inspect.Parameter.POSITIONAL_ONLY)]
    found = of_operator("LeakyRelu", "", inputs, named)
    assert found.attributes["newer"] == "DCR"
    assert found.attributes["alpha"] == pytest.approx(0.01)
