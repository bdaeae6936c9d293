"""The PyTorch nets: right answers from real weights, sane numbers from random ones."""

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.sources import read
from tests.zoo import fetch

torch = pytest.importorskip("torch")
nets = pytest.importorskip("tests.zoo.nets")

REAL = nets.PRETRAINED
RANDOM = [name for name in nets.NETS if name not in REAL]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", RANDOM)
def test_net_is_reproducible_and_well_scaled(name: str) -> None:
    outputs = []
    for _ in range(2):
        module, inputs, dynamic = nets.torch_model(name)
        assert not module.training
        assert dynamic.keys() <= inputs.keys()
        with torch.no_grad():
            outputs.append(torch.utils._pytree.tree_leaves(module(**inputs)))
    for first, second in zip(*outputs, strict=True):
        assert torch.equal(first, second)
        assert 1e-3 < float(first.std()) < 1e3


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_random_net_is_read(name: str) -> None:
    check_read(name)


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("name", REAL)
def test_real_net_is_read(name: str) -> None:
    check_read(name)


def check_read(name: str) -> None:
    module, inputs, dynamic = nets.torch_model(name)
    source = read(module, example_inputs=inputs, dynamic_shapes=dynamic, name=name)
    for value in source.model.graph.inputs:
        assert value.shape is not None
        for axis, size in dynamic[value.name or ""].items():
            assert str(value.shape[axis]) == size
    how = "twice as large" if name == "unet" else "one larger"
    assert f"with each dynamic size {how}" in source.notes.lines[-1]
    parameters = sum(parameter.numel() for parameter in module.parameters())
    stored = [v.const_value for v in source.model.graph.initializers.values()]
    assert sum(tensor.size for tensor in stored if tensor is not None) >= 0.95 * parameters


@pytest.mark.models
def test_minilm_gives_its_published_similarities() -> None:
    """Source: the pairs of the sentence-transformers documentation."""
    module, _, _ = nets.torch_model("minilm")

    def embed(text: str) -> Any:
        ids = torch.tensor([nets.wordpiece_ids(text)])
        with torch.no_grad():
            return module(ids, torch.ones_like(ids))[0]

    for first, second, expected in (
        ("The cat sits outside", "A man is playing guitar", 0.0363),
        ("The new movie is awesome", "The new movie is so great", 0.8939),
    ):
        assert float(embed(first) @ embed(second)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.models
def test_efficientnet_knows_photos() -> None:
    image = pytest.importorskip("PIL.Image")
    module, _, _ = nets.torch_model("efficientnet-lite0")
    labels = fetch("imagenet-labels.txt").read_text(encoding="utf-8").splitlines()
    for photo, words in (("coffee.png", "espresso"), ("baboon.jpg", "baboon")):
        picture = image.open(fetch(photo)).convert("RGB").resize((224, 224), image.BICUBIC)
        pixels = torch.from_numpy(np.asarray(picture, np.float32).copy())
        with torch.no_grad():
            scores = module(((pixels - 127) / 128).permute(2, 0, 1)[None])[0]
        assert labels[int(scores.argmax())].startswith(words)
