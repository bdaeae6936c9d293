"""What half-precision models add up and square is right where single precision is."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.widen_halves import WidenHalves
from edgeinfer.convert.verify.evaluate import Evaluator

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
W = "float16[4] w, float16[4] b"

KINDS = {
    "instance": ("InstanceNormalization(x, w, b)", W),
    "group": ("GroupNormalization<num_groups=2>(x, w, b)", W),
    "layer": ("LayerNormalization<axis=-1>(x, s)", "float16[64] s"),
    "l2": ("LpNormalization<axis=-1, p=2>(x)", ""),
    "softmax": ("Softmax<axis=-1>(x)", ""),
    "log softmax": ("LogSoftmax<axis=-1>(x)", ""),
    "mean": ("GlobalAveragePool(x)", ""),
}
TARGETS = {"onnxruntime": "onnx", "openvino": "openvino_ir", "rpi4": "tflite", "ios": "mlprogram"}


def model(kind: str) -> ir.Model:
    body, inputs = KINDS[kind]
    more = f", {inputs}" if inputs else ""
    return ir.from_onnx_text(
        f"{HEAD} g (float16[1,4,64] x{more}) => (float16[1,4,n] y) {{ y = {body} }}"
    )


def feeds(kind: str, size: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.sign(rng.standard_normal((1, 4, 64))) * size + rng.standard_normal((1, 4, 64))
    found = {"x": x.astype(np.float16)}
    sizes = {"instance": "wb", "group": "wb", "layer": "s"}.get(kind, "")
    for name in sizes:
        value = np.full(64 if name == "s" else 4, 0.0 if name == "b" else 1.0)
        found[name] = value.astype(np.float16)
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_inner_sums_do_not_leave_the_range(kind: str, target: str, tmp_path: Path) -> None:
    source = model(kind)
    given = feeds(kind, 300.0)
    right = Evaluator(source, wide=True).run(given)["y"]
    normal = passes.normalise(source).model
    profile = profiles.load(target)
    lowered = target_for(TARGETS[target]).lower(normal, profile, LowerOptions(), tmp_path)
    specs = passes.input_specs(normal), passes.output_specs(normal)
    artifact = Artifact(TARGETS[target], lowered.files[0], *specs)
    name = "coreml-reference" if target == "ios" else lowered.engines[0].backend
    executable = registry.get(name).load(artifact, LoadOptions())
    found = executable.run(given)["y"]
    executable.close()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), right, rtol=4e-3, atol=2e-3)


def test_the_interface_stays() -> None:
    m = model("instance")
    WidenHalves()(m)
    assert [v.name for v in m.graph.outputs] == ["y"]
    assert m.graph.outputs[0].dtype == ir.DataType.FLOAT16
    assert [n.op_type for n in m.graph] == [*["Cast"] * 3, "InstanceNormalization", "Cast"]
    onnx.checker.check_model(ir.to_proto(m))


def test_constants_are_widened_and_not_cast() -> None:
    m = ir.from_onnx_text(
        f"{HEAD} g (float16[1,4,64] x) => (float16[1,4,64] z) "
        "<float16[64] s = {%s}> {{ y = LayerNormalization<axis=-1>(x, s) z = Neg(y) }}".replace(
            "%s", ", ".join(["1"] * 64)
        )
        .replace("{{", "{")
        .replace("}}", "}")
    )
    InferShapes()(m)
    WidenHalves()(m)
    assert [n.op_type for n in m.graph] == ["Cast", "LayerNormalization", "Cast", "Neg"]


def test_single_precision_and_single_elements_are_left_alone() -> None:
    for kind, op in (("float", "Softmax"), ("float16", "Exp")):
        m = ir.from_onnx_text(f"{HEAD} g ({kind}[1,4] x) => ({kind}[1,4] y) {{ y = {op}(x) }}")
        assert not WidenHalves()(m).modified
