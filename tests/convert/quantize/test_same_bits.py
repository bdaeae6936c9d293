"""Normalisations and attention between integers: every engine answers with the same bits."""

import itertools
import re

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.precision_agree import ENGINES, answered, shared_limits
from edgeinfer.convert import passes
from edgeinfer.convert.quantize.calibration import Quantizer, Settings
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite.same_attention import parts_of_weight
from edgeinfer.media.samples import open_data
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_openvino_saturates

WIDTH, TOKENS, HEADS, SAMPLES = 32, 12, 2, 12


def product(x: str, w: str, y: str) -> str:
    return f"{y}_p = MatMul({x}, {w}w)\n{y} = Add({y}_p, {w}b)"


def heads(x: str, y: str, perm: str = "0, 2, 1, 3") -> str:
    return f"{y}_r = Reshape({x}, parts)\n{y} = Transpose<perm = [{perm}]>({y}_r)"


BEHIND = "\n".join([
    *(product("x", n, f"{n}0") for n in "qkv"),
    *(heads("q0", "q"), heads("k0", "k", "0, 2, 3, 1"), heads("v0", "v")),
    *("s = MatMul(q, k)", "d = Div(s, four)", "m = Add(d, mask)", "p = Softmax<axis = -1>(m)"),
    *("a = MatMul(p, v)", "at = Transpose<perm = [0, 2, 1, 3]>(a)", "ar = Reshape(at, whole)"),
    *(product("ar", "o", "o"), "r = Add(x, o)", "n = LayerNormalization(r, g, b)"),
    *(product("n", "u", "u"), "e = Gelu(u)", product("e", "d", "dd"), "r2 = Add(n, dd)"),
    "y = LayerNormalization(r2, g, b)",
])  # fmt: skip
"""A norm behind each sum, and a mask that is added."""

BEFORE = "\n".join([
    "n = RMSNormalization(x, g)",
    *(product("n", "all", "all"), "q1, k1, v1 = Split<axis = -1, num_outputs = 3>(all)"),
    *(heads("q1", "q"), heads("k1", "k", "0, 2, 3, 1"), heads("v1", "v")),
    *("qs = Mul(q, quarter)", "s = MatMul(qs, k)", "m = Where(causal, s, hidden)"),
    *("p = Softmax<axis = -1>(m)", "a = MatMul(p, v)"),
    *("at = Transpose<perm = [0, 2, 1, 3]>(a)", "ar = Reshape(at, whole)"),
    *(product("ar", "o", "o"), "r = Add(x, o)", "y = RMSNormalization(r, g)"),
])  # fmt: skip
"""A norm before, queries, keys and values of one product, and later tokens that are hidden."""

PICTURES = """
    c = Conv<pads = [1, 1, 1, 1]>(x, cw, cb)
    n = GroupNormalization<num_groups = 4>(c, cg, cb)
    e = Relu(n)
    f = Conv<pads = [1, 1, 1, 1]>(e, cw, cb)
    y = InstanceNormalization(f, cg, cb)
"""


def net(body: str, shape: tuple[int, ...], extra: str = "") -> ir.Model:
    rng = np.random.default_rng(0)
    values = {"g": rng.normal(size=WIDTH) * 0.2 + 1, "b": rng.normal(size=WIDTH) * 0.1}
    wide = {"q": 32, "k": 32, "v": 32, "o": 32, "u": 96, "all": 96}
    for name, size in {**wide, "d": 32}.items():
        rows = 96 if name == "d" else WIDTH
        values[f"{name}w"] = rng.normal(size=(rows, size)) / np.sqrt(rows)
        values[f"{name}b"] = rng.normal(size=size) * 0.3
    values |= {"cw": rng.normal(size=(16, 16, 3, 3)) / 12, "cb": rng.normal(size=16) * 0.3}
    values |= {"cg": rng.normal(size=16) * 0.2 + 1, "four": np.array(4.0)}
    values |= {"quarter": np.array(0.25), "hidden": np.array(-1e9)}
    found = {n: v.astype(np.float32) for n, v in values.items() if re.search(rf"\b{n}\b", body)}
    if "parts" in body:
        found["parts"] = np.array([1, TOKENS, HEADS, WIDTH // HEADS])
        found["whole"] = np.array([1, TOKENS, WIDTH])
    if "causal" in body:
        found["causal"] = np.tri(TOKENS, dtype=bool)[None, None]
    kinds = {"f": "float", "i": "int64", "b": "bool"}
    declared = ", ".join(
        f"{kinds[v.dtype.kind]}[{','.join(map(str, v.shape))}] {n}" for n, v in found.items()
    ).replace("[]", "")
    sizes = ",".join(map(str, shape))
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
    net (float[{sizes}] x{extra}) => (float[{sizes}] y) <{declared}> {{ {body} }}"""
    return passes.normalise(graph(text, **found)).model


def feeds_of(shape: tuple[int, ...], masked: bool) -> list[dict[str, np.ndarray]]:
    rng, made = np.random.default_rng(1), []
    for count in range(SAMPLES):
        # In steps of an image: OpenVINO rounds inputs that are near to halfway as it likes.
        feeds = {"x": (np.rint(rng.normal(size=shape) * 64) / 64).astype(np.float32)}
        if masked:
            mask = np.zeros((1, 1, 1, TOKENS), np.float32)
            mask[..., TOKENS - count % TOKENS :] = np.finfo(np.float32).min
            feeds["mask"] = mask
        made.append(feeds)
    return made


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        pytest.param(BEHIND, (1, TOKENS, WIDTH), id="norm_behind"),
        pytest.param(BEFORE, (1, TOKENS, WIDTH), id="norm_before"),
        pytest.param(PICTURES, (1, 16, 12, 12), id="pictures"),
    ],
)
def test_every_engine_answers_with_the_same_bits(body: str, shape: tuple[int, ...]) -> None:
    skip_where_openvino_saturates()
    masked = "mask" in body
    model = net(body, shape, f", float[1,1,1,{TOKENS}] mask" if masked else "")
    feeds, specs, limits = feeds_of(shape, masked), passes.input_specs(model), shared_limits()
    quantizer = Quantizer(model, recipe("static_wi8_ai8"), Settings(force=True))
    quantizer.calibrate(open_data(feeds, specs), [*limits.values()], specs)
    written = {e: quantizer.write(limits[e]).model for e in ENGINES}
    for one in written.values():
        left = {n.op_type for n in one.graph}
        assert not any(kind.endswith("Normalization") or kind == "Softmax" for kind in left), left
    found = {e: answered(m, e, feeds)["y"] for e, m in written.items()}
    wanted = answered(model, "onnxruntime", feeds)["y"]
    wrong = np.sum((found["onnxruntime"] - wanted) ** 2) / np.sum(wanted**2)
    assert wrong < 2e-3
    for a, b in itertools.combinations(found, 2):
        assert np.array_equal(found[a], found[b]), (a, b, np.mean(found[a] != found[b]))


def test_no_weight_is_near_to_halfway() -> None:
    for step in (1e-2, 1.4950079e-3, 2.5687722e-4):
        parts = parts_of_weight(step, 32)
        scores = -np.arange(int(10 / step), dtype=np.float32) * np.float32(step)
        weights = np.exp(scores.astype(np.float64)) * parts
        near = np.abs(weights - np.floor(weights) - 0.5)
        assert (near > 1.5e-7 * np.maximum(weights, 0.4)).all()
