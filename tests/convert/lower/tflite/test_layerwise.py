"""Nets of integers are as ONNX Runtime has them, layer by layer, up to how a tie is rounded."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.convert.lower.tflite.layerwise import quantized, worst_steps
from tests.convert.lower.tflite.run import Feeds, expected, lower, model_of, outputs

RNG = np.random.default_rng(0)
BLOCKS = 5
CHANNELS = 8


def deep_net() -> str:
    """Residual blocks with a depthwise convolution each, a branch, a pool and a product."""
    weights: list[str] = []
    body = ["t0 = Conv<pads=[1,1,1,1], strides=[2,2]>(x, first) r0 = Relu(t0)"]
    constant(weights, "first", CHANNELS, 3, 3, 3)
    for i in range(BLOCKS):
        constant(weights, f"wide{i}", CHANNELS * 2, CHANNELS, 1, 1)
        constant(weights, f"deep{i}", CHANNELS * 2, 1, 3, 3)
        constant(weights, f"thin{i}", CHANNELS, CHANNELS * 2, 1, 1)
        body.append(
            f"a{i} = Conv(r{i}, wide{i}) b{i} = Clip(a{i}, low, high) "
            f"c{i} = Conv<pads=[1,1,1,1], group={CHANNELS * 2}>(b{i}, deep{i}) d{i} = Relu(c{i}) "
            f"e{i} = Conv(d{i}, thin{i}) r{i + 1} = Add(r{i}, e{i})"
        )
    constant(weights, "dense", CHANNELS * 2, 10)
    tail = f"""m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r{BLOCKS})
        n = AveragePool<kernel_shape=[2,2], strides=[2,2]>(r{BLOCKS})
        o = Concat<axis=1>(m, n) p = GlobalAveragePool(o) q = Flatten(p) y = MatMul(q, dense)"""
    header = ", ".join([*weights, "float low = {0}", "float high = {6}"])
    return f"g (float[1,3,16,16] x) => (float[1,10] y) <{header}> {{ {' '.join(body)} {tail} }}"


def constant(weights: list[str], name: str, *shape: int) -> None:
    values = RNG.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    text = ", ".join(f"{v:.4f}" for v in values.reshape(-1))
    weights.append(f"float[{','.join(map(str, shape))}] {name} = {{{text}}}")


def image() -> Feeds:
    return {"x": RNG.normal(size=(1, 3, 16, 16)).astype(np.float32)}


def test_every_layer_of_a_deep_net_is_right_to_a_step() -> None:
    model = quantized(model_of(deep_net()), [image() for _ in range(4)])
    feeds = image()
    for xnnpack in (True, False):
        steps = worst_steps(model, feeds, xnnpack=xnnpack)
        assert len(steps) > 4 * BLOCKS
        assert max(steps.values()) <= 1, steps
    # The whole is a few steps off, which is small next to what the integers cost.
    want, floats = expected(model, feeds)["y"], expected(model_of(deep_net()), feeds)["y"]
    got = outputs(lower(model), feeds)["y"]
    assert np.linalg.norm(got - want) < 0.5 * np.linalg.norm(want - floats)


def test_a_fault_of_one_layer_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.convert.lower.tflite import layerwise

    def off(data: bytes, feeds: Feeds, *, xnnpack: bool = True) -> dict[str, np.ndarray]:
        found = outputs(data, feeds, xnnpack=xnnpack)
        first = next(n for n in found if f"{n}_given" in feeds)
        return {**found, first: found[first] ^ np.int8(2)}

    model = quantized(model_of(deep_net()), [image()])
    monkeypatch.setattr(layerwise, "outputs", off)
    assert max(worst_steps(model, image()).values()) > 1


@pytest.mark.models
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    ["mobilenet-v2", "mobilenet-v3-small", "resnet-18", "unet", "convnext-tiny", "yolo-head"],
)
def test_every_layer_of_known_nets_is_right_to_a_step(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.zoo.nets import torch_model

    module, example, _ = torch_model(name)
    one = {n: t[:1] for n, t in example.items()}
    path = tmp_path / "net.onnx"
    torch.onnx.export(
        module, tuple(one.values()), path, input_names=list(one), opset_version=17, dynamo=False
    )
    shapes = {n: tuple(t.shape) for n, t in one.items()}
    samples = [
        {n: RNG.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(3)
    ]
    model = quantized(model_of(path), samples[:2])
    for xnnpack, feeds in itertools.product((True, False), samples[2:]):
        steps = worst_steps(model, feeds, xnnpack=xnnpack)
        assert len(steps) > 10
        assert max(steps.values()) <= 1, {n: s for n, s in steps.items() if s > 1}
