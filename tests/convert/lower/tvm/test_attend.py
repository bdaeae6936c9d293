"""Attention of a few tokens to many is one kernel, and gives what the definition gives."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import onnx_ir as ir
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.lower.tvm.ops import attend
from edgeinfer.convert.lower.tvm.target import module_of
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import Remarks
from tests.convert.lower.tvm.run import MACHINE, Array, outputs

KERNEL = "1 Attention: one kernel each"


def _model(text: str) -> onnx.ModelProto:
    head = '<ir_version: 13, opset_import: ["": 24, "com.microsoft": 1]>'
    return onnx.parser.parse_model(f"{head} g {text}")


def _feeds(model: onnx.ModelProto, **given: Array) -> dict[str, Array]:
    rng, found = np.random.default_rng(0), dict(given)
    for value in model.graph.input:
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name not in found:
            found[value.name] = rng.standard_normal(sizes).astype(np.float32)
    return found


def _takes(model: onnx.ModelProto) -> bool:
    notes = Remarks()
    module_of(normalise(ir.from_proto(model)).model, machine(MACHINE), notes)
    return KERNEL in notes.lines


PLAIN = "float[2,4,{m},16] q, float[2,2,64,16] k, float[2,2,64,32] v"


@pytest.mark.parametrize(
    ("about", "counted"),
    [
        ("<is_causal=1, scale=0.3>", True),
        pytest.param("", False, marks=pytest.mark.slow),
        pytest.param("<is_causal=1>", False, marks=pytest.mark.slow),
        pytest.param("<scale=0.5>", True, marks=pytest.mark.slow),
    ],
)
def test_numbers_are_those_of_the_definition(
    about: str, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, last = (", int64[2] t", ', "", "", "", t') if counted else ("", "")
    model = _model(
        f"({PLAIN.format(m=3)}{more}) => (float[2,4,3,32] y) "
        f"{{ y = Attention{about}(q, k, v{last}) }}"
    )
    feeds = _feeds(model, **({"t": np.array([64, 5])} if counted else {}))
    assert _takes(model)
    got = outputs(model, feeds)["y"]
    monkeypatch.setattr(attend, "takes", lambda node: False)
    assert not _takes(model)
    want = outputs(model, feeds)["y"]
    assert np.abs(got - want).max() <= 2e-6


@pytest.mark.parametrize(
    "text",
    [
        f"({PLAIN.format(m=9)}) => (float[2,4,9,32] y) {{ y = Attention(q, k, v) }}",
        f"({PLAIN.format(m=1)}, float[1,64] b) => (float[2,4,1,32] y) "
        "{ y = Attention(q, k, v, b) }",
        f"({PLAIN.format(m=1)}) => (float[2,4,1,32] y) {{ y = Attention<softcap=2.0>(q, k, v) }}",
        "(float[1,1,1,8] q, float[1,1,64,8] k, float[1,1,64,8] v) => (float[1,1,1,8] y) "
        "{ y = Attention(q, k, v) }",
        "(double[1,1,1,16] q, double[1,1,64,16] k, double[1,1,64,16] v) => "
        "(double[1,1,1,16] y) { y = Attention(q, k, v) }",
    ],
    ids=["many tokens", "a mask", "a cap", "odd sizes", "another type"],
)
def test_what_the_kernel_does_not_compute_is_written_out(text: str) -> None:
    assert not _takes(_model(text))


def test_attention_over_a_cache_of_onnx_runtime() -> None:
    import onnxruntime

    cache = "float[1,2,80,16]"
    model = _model(
        "(float[1,1,64] q, float[1,1,32] k, float[1,1,32] v, "
        f"{cache} pk, {cache} pv, int32[1,1] s, int32[1] t) => (float[1,1,64] y, {cache} a, "
        f"{cache} b) {{ y, a, b = com.microsoft.GroupQueryAttention"
        "<num_heads=4, kv_num_heads=2>(q, k, v, pk, pv, s, t) }"
    )
    feeds = _feeds(model, s=np.array([[40]], np.int32), t=np.array([41], np.int32))
    assert _takes(model)
    model.ir_version = 10
    session = onnxruntime.InferenceSession(model.SerializeToString())
    got = outputs(model, feeds)
    assert np.abs(got["y"] - session.run(["y"], feeds)[0]).max() <= 2e-6
