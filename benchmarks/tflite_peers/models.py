"""The models of the comparison, each as one ONNX file with fixed sizes that every tool is given."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests import zoo

Array = Any
Shape = tuple[int, ...]

EXPORTERS = {"dynamo": True, "torchscript": False}


@dataclass(frozen=True, slots=True)
class Model:
    """One model.

    Attributes:
        name: shown, and of its file.
        shapes: of inputs with open sizes.
        frozen: values of inputs that become constants.
        low: smallest value of random float inputs.
        high: largest.
        top: random integers are below.
        picture: asset that float inputs are cut from, in place of random numbers.
        source: writes the ONNX file; default the asset of the same name.
    """

    name: str
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    frozen: Mapping[str, int] = field(default_factory=dict)
    low: float = -1.0
    high: float = 1.0
    top: int = 200
    picture: str = ""
    source: Callable[[Path], None] | None = None

    def prepare(self, folder: Path) -> Path:
        """Write the file with fixed sizes, once."""
        digest = hashlib.sha256(repr((self.shapes, self.frozen)).encode()).hexdigest()[:8]
        target = folder / digest / f"{self.name}.onnx"
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = folder / f"{self.name}.raw"
        if self.source is None:
            proto = onnx.load(zoo.fetch(f"{self.name}.onnx"))
        else:
            self.source(raw)
            proto = onnx.load(raw)
            raw.unlink()
        freeze(proto, self.frozen)
        _bind(proto, self.shapes)
        onnx.save(proto, target)
        return target

    def oracle(self, path: Path) -> tuple[Path, dict[str, Array]]:
        """The file ONNX Runtime is asked, as it was published, and values of frozen inputs."""
        if self.source is not None:
            return path, {}
        (asset, proto) = zoo.fetch(f"{self.name}.onnx"), onnx.load(path, load_external_data=False)
        made = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        return asset, {n: made[n] for n in self.frozen}

    def feeds(self, path: Path, seed: int) -> dict[str, Array]:
        """Random inputs in the model's range."""
        return self.drawn(onnx.load(path, load_external_data=False), seed)

    def drawn(self, proto: Any, seed: int) -> dict[str, Array]:
        """Random inputs for a model with fixed sizes."""
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {}
        for value in inputs(proto):
            kind = value.type.tensor_type
            shape = [d.dim_value for d in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            if dtype.kind == "f" and self.picture:
                made[value.name] = _cut(self.picture, shape, rng)
            elif dtype.kind == "f":
                made[value.name] = rng.uniform(self.low, self.high, shape).astype(dtype)
            elif "mask" in value.name:
                made[value.name] = np.ones(shape, dtype)
            else:
                made[value.name] = rng.integers(1, self.top, shape).astype(dtype)
        return made


def _cut(picture: str, shape: list[int], rng: np.random.Generator) -> Array:
    """A part of an image, somewhere in it, from -1 to 1."""
    from PIL import Image

    height, width = shape[2:]
    with Image.open(zoo.fetch(picture)) as opened:
        whole = opened.convert("RGB")
    factor = max(height / whole.height, width / whole.width, 1.0)
    whole = whole.resize((int(whole.width * factor + 1), int(whole.height * factor + 1)))
    pixels = np.asarray(whole, np.float32) / 127.5 - 1
    top = int(rng.integers(0, pixels.shape[0] - height + 1))
    left = int(rng.integers(0, pixels.shape[1] - width + 1))
    part = pixels[top : top + height, left : left + width].transpose(2, 0, 1)
    return np.ascontiguousarray(part[None])


def inputs(proto: Any) -> list[Any]:
    """The inputs that are not constants."""
    constants = {t.name for t in proto.graph.initializer}
    return [v for v in proto.graph.input if v.name not in constants]


def freeze(proto: Any, frozen: Mapping[str, int]) -> None:
    """Make constants of inputs."""
    for name, number in frozen.items():
        (value,) = [v for v in proto.graph.input if v.name == name]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        proto.graph.initializer.append(numpy_helper.from_array(np.array(number, kind), name))
        proto.graph.input.remove(value)


def _bind(proto: Any, shapes: Mapping[str, Shape]) -> None:
    """Write sizes into the inputs; shapes that were inferred from open sizes are dropped."""
    given = {v.name: v for v in inputs(proto)}
    for name, shape in shapes.items():
        for dim, size in zip(given[name].type.tensor_type.shape.dim, shape, strict=True):
            dim.Clear()
            dim.dim_value = size
    for value in given.values():
        for dim in value.type.tensor_type.shape.dim:
            if not dim.dim_value:
                raise ValueError(f"input {value.name!r} has open sizes")
    if not shapes:
        return
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        # Their old names of sizes would tie what is fixed now to what is not.
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _exported(net: str, exporter: str) -> Callable[[Path], None]:
    """Let PyTorch write a net, in a process of its own: its memory is not ours."""

    def write(path: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.tflite_peers.models", net, exporter, str(path)]
        subprocess.run(command, check=True, capture_output=True)

    return write


def _export(net: str, exporter: str, path: str) -> None:
    import torch

    from tests.zoo.nets import torch_model

    module, example, _ = torch_model(net)
    batch_one = {n: t[:1] for n, t in example.items()}
    torch.onnx.export(
        module,
        tuple(batch_one.values()),
        path,
        input_names=list(batch_one),
        opset_version=20 if EXPORTERS[exporter] else 17,
        dynamo=EXPORTERS[exporter],
        external_data=False,
    )


NETS = (
    *("mobilenet-v2", "mobilenet-v3-small", "mobilenet-v3-large", "resnet-18", "resnet-50"),
    *("efficientnet-lite0", "efficientnet-b0", "yolo-head", "unet", "convnext-tiny", "vit-tiny"),
    *("bert-mini", "minilm", "conformer", "lstm", "gru", "bilstm", "bigru", "audio", "oddities"),
    *("mtcnn-pnet", "mtcnn-rnet", "mtcnn-onet", "crepe-tiny"),
)

_STATE = (2, 1, 128)

REAL = (
    Model("basic-pitch", {"serving_default_input_2:0": (1, 43844, 1)}, low=-0.5, high=0.5),
    Model("silero-vad", {"input": (1, 576), "state": _STATE}, {"sr": 16000}),
    Model("silero-vad-16k-op15", {"input": (1, 576), "state": _STATE}, {"sr": 16000}),
    Model("silero-vad-op18-ifless", {"input": (1, 576), "state": _STATE}, {"sr": 16000}),
    Model("silero-vad-16k-sequence", {"input": (4, 576)}),
    Model("silero-vad-half", {"input": (1, 576), "state": _STATE}),
    Model("silero-vad-openvino-16k"),
    Model("ppocrv4-det", {"x": (1, 3, 320, 320)}, picture="page.png"),
    Model("ppocrv4-rec", {"x": (1, 3, 48, 320)}, picture="text.png"),
    Model("ppocr-cls", {"x": (1, 3, 48, 192)}, picture="text.png"),
    Model("ppocrv6-det", {"x": (1, 3, 320, 320)}, picture="page.png"),
    Model("ppocrv6-rec", {"x": (1, 3, 48, 320)}, picture="text.png"),
    Model("blazeface-front"),
    Model("blazeface-back"),
    Model("magika", {"bytes": (1, 2048)}),
    Model("aecmos-1663829550", {"input": (1, 3, 40, 160)}),
    Model("aecmos-1663915512", {"input": (1, 3, 40, 160)}),
    Model("aecmos-1668423760", {"input": (1, 3, 40, 160)}),
    Model("dnsmos-bak-ovr", {"input_1": (1, 901, 161)}),
    Model("dnsmos-sig", {"input_1": (1, 901, 161)}),
    Model("dnsmos-v8", {"input_1": (1, 900, 120)}),
    Model("dnsmos-sig-bak-ovr", {"input_1": (1, 144160)}),
    Model("plcmos-v2", {"degraded_audio": (1, 1, 40, 257), "rater_embed": (1, 64)}, low=0),
    Model("wake-alexa"),
    Model("wake-hey-jarvis"),
    Model("wake-hey-mycroft"),
    Model("wake-hey-rhasspy"),
    Model("wake-timer"),
    Model("wake-weather"),
    Model("wake-embedding", {"input_1": (1, 76, 32, 1)}, low=0, high=10),
    Model("wake-melspectrogram", {"input": (1, 12400)}, low=-3000, high=3000),
)
"""Files that packages ship."""

EXPORTED = tuple(
    Model(f"{net}-{exporter}", source=_exported(net, exporter))
    for net in NETS
    for exporter in EXPORTERS
)
"""PyTorch nets through both of its exporters."""

MODELS = {m.name: m for m in (*REAL, *EXPORTED)}


if __name__ == "__main__":
    _export(*sys.argv[1:])
