"""PyTorch nets for the tests: seven with real weights, the others random and written by hand.

``torch_model(name)`` gives what ``edgeinfer.convert.sources.read`` takes. Random weights come from
a fixed seed, so a net is the same in every process.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.zoo import fetch
from tests.zoo.pretrained import Crepe, FaceOutput, FaceProposals, FaceRefinement
from tests.zoo.sequence import (
    AudioNet,
    BertEncoder,
    BertSizes,
    ConformerBlock,
    RecurrentNet,
    VisionTransformer,
)
from tests.zoo.vision import (
    ConvNeXt,
    EfficientNetB0,
    MobileNetV2,
    MobileNetV3,
    Oddities,
    ResNet,
    UNet,
    YoloHead,
)

Model = tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]
"""Module in eval mode, example inputs by name, dynamic sizes by input name and axis."""

_BATCH = {0: "batch"}


def torch_model(name: str) -> Model:
    """Build a net.

    Raises:
        KeyError: no net has this name; ``NETS`` has them all.
        ZooError: its weights cannot be fetched.
    """
    torch.manual_seed(0)
    module, inputs, dynamic = NETS[name]()
    return module.eval(), inputs, dynamic


def _image(module: nn.Module, size: int) -> Model:
    _settle(module, torch.randn(4, 3, size, size))
    return module, {"x": torch.randn(1, 3, size, size)}, {"x": _BATCH}


def _settle(module: nn.Module, x: Tensor) -> None:
    """Give batch norms the statistics of a batch: untouched, deep random nets vanish or explode."""
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.0, 0.1)
    if norms:
        module.train()
        with torch.no_grad():
            module(x)
        module.eval()


def _efficientnet_lite0() -> Model:
    """The net whose class a package ships; right on photos with ``(x - 127) / 128``, RGB, 224."""
    folder = fetch("efficientnet_lite_pytorch")
    spec = importlib.util.spec_from_file_location(
        "efficientnet_lite_pytorch",
        folder / "__init__.py",
        submodule_search_locations=[str(folder)],
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not a package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    module = package.EfficientNet.from_name("efficientnet-lite0")
    module.load_state_dict(_checkpoint("efficientnet-lite0.pth"))
    return module, {"inputs": torch.randn(1, 3, 224, 224)}, {"inputs": _BATCH}


def _minilm() -> Model:
    module = BertEncoder(BertSizes(30522, 384, 1536, 12, 6))
    module.load_state_dict(_minilm_weights())
    return module, _tokens(30522, 16), _token_shapes()


def _minilm_weights() -> dict[str, Tensor]:
    """Read the safetensors file: a length, a JSON header, the bytes."""
    raw = fetch("minilm.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header: dict[str, Any] = json.loads(raw[8 : 8 + length])
    weights = {}
    for key, entry in header.items():
        if key == "__metadata__" or entry["dtype"] != "F32" or key.startswith("pooler."):
            continue
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        array = np.frombuffer(raw[start:end], "<f4").reshape(entry["shape"])
        weights[key] = torch.from_numpy(array.copy())
    return weights


def wordpiece_ids(text: str) -> list[int]:
    """MiniLM's token ids of lower-case words and punctuation, by longest match."""
    tokenizer = json.loads(fetch("minilm-tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    ids = [vocabulary["[CLS]"]]
    for mark in ".,?!'":
        text = text.replace(mark, f" {mark} ")
    for word in text.lower().split():
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            end = next(
                e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary
            )
            ids.append(vocabulary[prefix + word[start:end]])
            start = end
    return [*ids, vocabulary["[SEP]"]]


def _tokens(vocabulary: int, length: int) -> dict[str, Tensor]:
    ids = torch.randint(1, vocabulary, (2, length))
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _token_shapes() -> dict[str, dict[int, str]]:
    axes = {0: "batch", 1: "tokens"}
    return {"input_ids": axes, "attention_mask": axes}


def _bert_mini() -> Model:
    return BertEncoder(BertSizes(1000, 64, 256, 4, 2)), _tokens(1000, 16), _token_shapes()


def _conformer() -> Model:
    block = ConformerBlock(64, 4)
    return block, {"x": torch.randn(1, 50, 64)}, {"x": {0: "batch", 1: "frames"}}


def _recurrent(kind: str, bidirectional: bool = False) -> Callable[[], Model]:
    def build() -> Model:
        net = RecurrentNet(kind, bidirectional)
        return net, {"x": torch.randn(2, 20, 16)}, {"x": {0: "batch", 1: "frames"}}

    return build


def _unet() -> Model:
    net = UNet()
    _settle(net, torch.randn(2, 3, 64, 64))
    sizes = {0: "batch", 2: "height", 3: "width"}
    return net, {"x": torch.randn(1, 3, 64, 64)}, {"x": sizes}


def _audio() -> Model:
    return AudioNet(), {"x": torch.randn(1, 1600)}, {"x": {0: "batch", 1: "samples"}}


def _oddities() -> Model:
    return Oddities(), {"x": torch.randn(2, 3, 32, 32)}, {"x": _BATCH}


def _mtcnn(name: str, net: type[nn.Module], size: int) -> Callable[[], Model]:
    def build() -> Model:
        module = net()
        module.load_state_dict(_checkpoint(f"{name}.pt"))
        sizes = {0: "batch", 2: "height", 3: "width"} if net is FaceProposals else _BATCH
        return module, {"x": torch.randn(1, 3, size, size)}, {"x": sizes}

    return build


def _crepe(size: str) -> Callable[[], Model]:
    def build() -> Model:
        module = Crepe(size == "full")
        module.load_state_dict(_checkpoint(f"crepe-{size}.pth"))
        return module, {"x": torch.randn(1, 1024)}, {"x": _BATCH}

    return build


def _checkpoint(name: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(fetch(name), map_location="cpu", weights_only=True)
    return weights


NETS: dict[str, Callable[[], Model]] = {
    "efficientnet-lite0": _efficientnet_lite0,
    "minilm": _minilm,
    "mtcnn-pnet": _mtcnn("mtcnn-pnet", FaceProposals, 60),
    "mtcnn-rnet": _mtcnn("mtcnn-rnet", FaceRefinement, 24),
    "mtcnn-onet": _mtcnn("mtcnn-onet", FaceOutput, 48),
    "crepe-tiny": _crepe("tiny"),
    "crepe-full": _crepe("full"),
    "mobilenet-v2": lambda: _image(MobileNetV2(), 224),
    "mobilenet-v3-small": lambda: _image(MobileNetV3(large=False), 224),
    "mobilenet-v3-large": lambda: _image(MobileNetV3(large=True), 224),
    "efficientnet-b0": lambda: _image(EfficientNetB0(), 224),
    "resnet-18": lambda: _image(ResNet((2, 2, 2, 2), bottleneck=False), 224),
    "resnet-50": lambda: _image(ResNet((3, 4, 6, 3), bottleneck=True), 224),
    "yolo-head": lambda: _image(YoloHead(), 160),
    "unet": _unet,
    "convnext-tiny": lambda: _image(ConvNeXt(), 64),
    "vit-tiny": lambda: _image(VisionTransformer(), 224),
    "bert-mini": _bert_mini,
    "conformer": _conformer,
    "lstm": _recurrent("lstm"),
    "gru": _recurrent("gru"),
    "bilstm": _recurrent("lstm", bidirectional=True),
    "bigru": _recurrent("gru", bidirectional=True),
    "audio": _audio,
    "oddities": _oddities,
}
"""Every net."""

PRETRAINED = (
    *("efficientnet-lite0", "minilm", "mtcnn-pnet", "mtcnn-rnet", "mtcnn-onet"),
    *("crepe-tiny", "crepe-full"),
)
"""Those with real weights, which are fetched."""
