"""Small sizes at which each float model of the zoo runs, for formats and places that want them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.zoo import assets, fetch
from tests.zoo.exported import EXPORTERS, exported

Shapes = Mapping[str, tuple[int, ...]]

_PICTURE = {"x": (1, 3, 64, 64)}
_LINE = {"x": (1, 3, 48, 64)}


def _silero(samples: int) -> Shapes:
    return {"input": (1, samples), "state": (2, 1, 128)}


def _echo(width: int) -> Shapes:
    return {"input": (1, 3, 20, 160), "h0": (4, 1, width)}


ASSETS: dict[str, Shapes] = {
    "basic-pitch": {"serving_default_input_2:0": (1, 43844, 1)},
    "basic-pitch.tflite": {"input_2": (1, 43844, 1)},
    "silero-vad": _silero(512),
    "silero-vad-16k-op15": _silero(512),
    "silero-vad-16k-sequence": {"input": (2, 576)},
    "silero-vad-half": _silero(512),
    "silero-vad-op18-ifless": _silero(512),
    "ppocrv4-det": _PICTURE,
    "ppocrv4-rec": _LINE,
    "ppocr-cls": {"x": (1, 3, 48, 192)},
    "gutenye-ppocrv4-det": _PICTURE,
    "gutenye-ppocrv4-rec": _LINE,
    "gutenye-ppocr-cls": {"x": (1, 3, 48, 192)},
    "ppocrv6-det": _PICTURE,
    "ppocrv6-rec": _LINE,
    "magika": {"bytes": (1, 2048)},
    "aecmos-1663829550": _echo(64),
    "aecmos-1663915512": _echo(64),
    "aecmos-1668423760": _echo(96),
    "dnsmos-bak-ovr": {"input_1": (1, 901, 161)},
    "dnsmos-sig": {"input_1": (1, 901, 161)},
    "dnsmos-v8": {"input_1": (1, 900, 120)},
    "dnsmos-sig-bak-ovr": {"input_1": (1, 144160)},
    "pdnsmos-sig-bak-ovr": {"input_1": (1, 144160)},
    "plcmos-v2": {"degraded_audio": (1, 1, 20, 257), "rater_embed": (1, 64)},
    "wake-embedding": {"input_1": (1, 76, 32, 1)},
    "wake-melspectrogram": {"input": (1, 1760)},
}
"""By the file's name, mostly without its ending; what is not here has sizes of its own."""

SIZES = {"batch": 1, "height": 64, "width": 64, "tokens": 16, "frames": 50, "samples": 1600}
"""Of the nets, by the name of an open size."""

VALUES: dict[str, dict[str, int]] = {"silero-vad": {"sr": 16000}}
"""Inputs that choose a path: of one that cannot run at the sizes, with the other as a constant."""

REFUSED: tuple[str, ...] = ()
"""Files that no reader takes."""


def names() -> list[str]:
    """Every float model: files of packages, and the nets as one exporter writes them."""
    from tests.zoo.nets import NETS

    files = [n for n in assets() if n.endswith((".onnx", ".tflite"))]
    return [*files, *(f"{net}-{EXPORTERS[1]}" for net in NETS)]


def model(name: str) -> tuple[Path, Shapes]:
    """Return a model's file and the sizes to fix."""
    if name.endswith((".onnx", ".tflite")):
        path = fetch(name)
        return path, ASSETS.get(name, ASSETS.get(path.stem, {}))
    net, _, exporter = name.rpartition("-")
    path = exported(net, exporter)
    import onnx

    found = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        sizes = [d.dim_value or SIZES[d.dim_param] for d in value.type.tensor_type.shape.dim]
        found[value.name] = tuple(sizes)
    return path, found
