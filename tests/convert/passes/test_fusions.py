"""All fusions together, on graphs as the PyTorch exporters and real models bring them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import FUSIONS, normalise
from tests.convert.passes.fusing import check_close, graph, ops, run
from tests.zoo import fetch

HARD = "<float three = {3}, float zero = {0}, float six = {6}> "


def test_each_pass_is_there_once() -> None:
    names = [type(one).__name__ for one in FUSIONS]
    assert len(names) == len(set(names))


def test_hard_swish_is_found_before_the_hard_sigmoid_inside_it() -> None:
    model = graph(
        "g (float[4] x) => (float[4] y) " + HARD + "{ a = Add(x, three) c = Clip(a, zero, six)"
        " d = Div(c, six) y = Mul(x, d) }"
    )
    for one in FUSIONS:
        one(model)
    assert ops(model) == {"HardSwish": 1}


def test_a_dead_reader_does_not_keep_a_pattern_apart() -> None:
    model = graph("g (float[4] x) => (float[4] y) { s = Sigmoid(x) d = IsNaN(s) y = Mul(x, s) }")
    for one in FUSIONS:
        one(model)
    assert ops(model) == {"Swish": 1}


def modules() -> dict[str, tuple[Any, tuple[Any, ...], dict[str, int]]]:
    """Small modules with their inputs and the operators that must remain."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    class Call(nn.Module):  # type: ignore[misc]
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, *x: Any) -> Any:
            return self.function(*x)

    def llama_norm(x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def layer_norm(x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)

    def new_gelu(x: Any) -> Any:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 16, generator=generator)
    q = torch.randn(2, 2, 5, 4, generator=generator)
    image = torch.randn(1, 8, 6, 6, generator=generator)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    norm = nn.BatchNorm2d(4)
    norm.running_mean, norm.running_var = torch.arange(4.0) / 4, torch.arange(1.0, 5.0)
    attention = F.scaled_dot_product_attention
    return {
        "gelu": (nn.GELU(), (x,), {"Gelu": 1}),
        "gelu_tanh": (nn.GELU(approximate="tanh"), (x,), {"Gelu": 1}),
        "new_gelu": (Call(new_gelu), (x,), {"Gelu": 1}),
        "silu": (nn.SiLU(), (x,), {"Swish": 1}),
        "quick_gelu": (Call(lambda x: x * torch.sigmoid(1.702 * x)), (x,), {"Swish": 1}),
        "hard_swish": (nn.Hardswish(), (x,), {"HardSwish": 1}),
        "relu6": (Call(lambda x: x * F.relu6(x + 3) / 6), (x,), {"HardSwish": 1}),
        "mish": (nn.Mish(), (x,), {"Mish": 1}),
        "softplus": (Call(lambda x: x * torch.tanh(F.softplus(x))), (x,), {"Mish": 1}),
        "layer_norm": (Call(layer_norm), (x,), {"LayerNormalization": 1}),
        "rms_norm": (Call(llama_norm), (x,), {"RMSNormalization": 1}),
        "attention": (Call(attention), (q, q, q), {"Attention": 1}),
        "masked": (Call(attention), (q, q, q, mask), {"Where": 1, "Attention": 1}),
        "conv": (nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), norm), (image,), {"Conv": 1}),
        "leaky": (Call(lambda x: torch.maximum(x, 0.2 * x)), (x,), {"LeakyRelu": 1}),
    }


NAMES = [
    *("gelu", "gelu_tanh", "new_gelu", "silu", "quick_gelu", "hard_swish", "relu6", "mish"),
    *("softplus", "layer_norm", "rms_norm", "attention", "masked", "conv", "leaky"),
]


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("name", NAMES)
def test_what_pytorch_exports_is_recovered(name: str, dynamo: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the exporters are part of PyTorch")
    module, inputs, remaining = modules()[name]
    module.eval()
    path, version = tmp_path / "model.onnx", 18 if dynamo else 17
    more = {"external_data": False, "verbose": False} if dynamo else {}
    torch.onnx.export(module, inputs, path, dynamo=dynamo, opset_version=version, **more)
    model = normalise(ir.load(path)).model
    assert ops(model) == remaining
    with torch.no_grad():
        expected = module(*inputs).numpy()
    feeds = {v.name or "": x.numpy() for v, x in zip(model.graph.inputs, inputs, strict=False)}
    check_close(run(model, feeds)[0], expected)


REAL = {
    "ppocrv6-det.onnx": {"Gelu": 13, "Erf": 0, "BatchNormalization": 0},
    "ppocrv6-rec.onnx": {"Gelu": 13, "Swish": 5, "LayerNormalization": 5, "Attention": 2, "Erf": 0},
    "ppocrv4-rec.onnx": {"HardSwish": 28, "Swish": 7, "LayerNormalization": 5, "Attention": 2},
    "ppocr-cls.onnx": {"HardSwish": 18, "BatchNormalization": 0, "Clip": 0},
    "magika.onnx": {"Gelu": 2, "Tanh": 0},
    "wake-hey-jarvis.onnx": {"LayerNormalization": 4, "ReduceMean": 0},
}
SHAPES = {"det": (1, 3, 96, 160), "rec": (1, 3, 48, 160), "cls": (1, 3, 48, 192)}


@pytest.mark.models
@pytest.mark.parametrize("name", REAL)
def test_real_models_are_recovered_with_their_numbers(name: str) -> None:
    path = fetch(name)
    source = ir.load(path)
    model = normalise(source).model
    found = ops(model)
    assert {op: found.get(op, 0) for op in REAL[name]} == REAL[name]
    first = source.graph.inputs[0]
    shape = next((s for kind, s in SHAPES.items() if kind in name), None)
    rng = np.random.default_rng(0)
    if shape is not None:
        x = rng.standard_normal(shape).astype(np.float32) / 2
    else:
        dims = [d if isinstance(d, int) else 1 for d in first.shape or ()]
        x = rng.standard_normal(dims).astype(np.float32)
        x = rng.integers(0, 256, dims).astype(np.int32) if first.dtype == ir.DataType.INT32 else x
    feeds = {first.name or "": x}
    for old, new in zip(run(source, feeds), run(model, feeds), strict=True):
        check_close(new, old, atol=1e-5)
