"""Blocks of attention as integers, with floats between, on three engines."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.precision_agree import ENGINES, WANTED, answered, shared_limits
from edgeinfer.convert import passes
from edgeinfer.convert.quantize.calibration import Quantizer, Settings
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.media.samples import open_data
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_openvino_saturates

WIDTH, WIDE, TOKENS, BLOCKS, SAMPLES = 32, 96, 12, 3, 24
RNG = np.random.default_rng(0)


def block(i: int) -> str:
    """Attention of one head and two products with a Gelu between, each behind a normalisation."""
    lines = [f"n{i} = LayerNormalization(x{i}, g, b)"]
    for part in "qkv":
        lines += [
            f"{part}p{i} = MatMul(n{i}, {part}w{i})",
            f"{part}{i} = Add({part}p{i}, {part}b{i})",
        ]
    lines += [
        f"t{i} = Transpose<perm = [0, 2, 1]>(k{i})",
        f"s{i} = MatMul(q{i}, t{i})",
        f"p{i} = Softmax<axis = -1>(s{i})",
        f"a{i} = MatMul(p{i}, v{i})",
        f"op{i} = MatMul(a{i}, ow{i})",
        f"o{i} = Add(op{i}, ob{i})",
        f"r{i} = Add(x{i}, o{i})",
        f"m{i} = LayerNormalization(r{i}, g, b)",
        f"up{i} = MatMul(m{i}, uw{i})",
        f"u{i} = Add(up{i}, ub{i})",
        f"e{i} = Gelu(u{i})",
        f"dp{i} = MatMul(e{i}, dw{i})",
        f"d{i} = Add(dp{i}, db{i})",
        f"x{i + 1} = Add(r{i}, d{i})",
    ]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def net() -> ir.Model:
    values = {"g": np.ones(WIDTH), "b": RNG.normal(size=WIDTH) * 0.1}
    sizes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
    sizes |= {"u": (WIDTH, WIDE), "d": (WIDE, WIDTH)}
    for i, (name, size) in itertools.product(range(BLOCKS), sizes.items()):
        values[f"{name}w{i}"] = RNG.normal(size=size) / np.sqrt(size[0])
        values[f"{name}b{i}"] = RNG.normal(size=size[1]) * 0.3
    declared = ", ".join(
        f"float[{','.join(map(str, v.shape))}] {name}" for name, v in values.items()
    )
    body = "\n".join(block(i) for i in range(BLOCKS))
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    net (float[1,{TOKENS},{WIDTH}] x0) => (float[1,{TOKENS},{WIDTH}] x{BLOCKS})
    <{declared}> {{
    {body}
    }}"""
    return passes.normalise(
        graph(text, **{n: v.astype(np.float32) for n, v in values.items()})
    ).model


def test_engines_are_within_a_step_though_floats_come_between(net: ir.Model) -> None:
    skip_where_openvino_saturates()
    specs, limits = passes.input_specs(net), shared_limits()
    feeds = [{"x0": RNG.normal(size=(1, TOKENS, WIDTH)).astype(np.float32)} for _ in range(SAMPLES)]
    quantizer = Quantizer(net, recipe("static_wi8_ai8"), Settings(force=True))
    quantizer.calibrate(open_data(feeds, specs), [*limits.values()], specs)
    found = {e: answered(quantizer.write(limits[e]).model, e, feeds)[f"x{BLOCKS}"] for e in ENGINES}
    step = float(np.ptp(found["onnxruntime"])) / 255
    for one, other in itertools.combinations(found, 2):
        within = np.mean(np.abs(found[one] - found[other]) < 1.01 * step)
        assert within >= WANTED, (one, other, within)
