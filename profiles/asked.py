"""What people ask for that is no target: formats, engines, systems and devices by other names.

The answer is a hint, never another target taken in its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgeinfer.profiles.schema import Profile

FORMATS = {
    "tflite": "tflite",
    "mlprogram": "mlprogram",
    "mlpackage": "mlprogram",
    "onnx": "onnx",
    "openvino_ir": "openvino_ir",
    "ir": "openvino_ir",
    "xml": "openvino_ir",
    "aimodel": "aimodel",
}
"""Formats by what people call them."""

ENGINES = {
    "litert": "litert",
    "tensorflow-lite": "litert",
    "coreml": "coreml",
    "core-ml": "coreml",
    "tensorrt": "tensorrt",
    "trt": "tensorrt",
    "engine": "tensorrt",
    "ort": "onnxruntime",
    "coreai": "coreai",
    "tvm": "tvm",
}
"""Engines by what people call them."""

_WHICH_PI = "name the model: rpi5 or rpi4"
_ANY_PC = (
    "cpu is for the machine that converts; openvino and onnxruntime run on any x86-64 or Arm CPU"
)
_NONE = "no target writes for it"

OTHERS = {
    **dict.fromkeys(("pi", "rpi", "raspberrypi", "raspberry-pi", "raspberry"), _WHICH_PI),
    **dict.fromkeys(("rpi3", "pi3", "raspberrypi3"), f"{_NONE}; rpi4 is the oldest Raspberry Pi"),
    **dict.fromkeys(("windows", "linux", "pc", "desktop", "laptop", "server"), _ANY_PC),
    **dict.fromkeys(("x86", "x86-64", "x86_64", "amd64", "x64", "arm64", "aarch64"), _ANY_PC),
    "jetson-nano": (
        "the Jetson Orin Nano is jetson-orin; nothing here runs on the Jetson Nano of 2019, whose "
        "last system is JetPack 4"
    ),
    "jetson-xavier": f"{_NONE}; JetPack 5 is its last system, and jetson-orin needs JetPack 6",
    "gpu": "of NVIDIA in a PC: cuda; in a Jetson: jetson-orin, jetson-thor; of Apple: ios, macos",
    "npu": "of Apple: ios, macos with --precision fp16; no target writes for other ones",
    **dict.fromkeys(("coral", "edgetpu", "hailo", "hailo8", "rknn", "qnn", "hexagon"), _NONE),
    **dict.fromkeys(("web", "wasm", "browser"), _NONE),
}  # fmt: skip


def hint(word: str, known: Iterable[Profile]) -> str:
    """Say what to ask for instead; empty where nothing is known of the word.

    Args:
        word: what was requested.
        known: the profiles there are; those to be requested by name are not named.
    """
    word = word.lower().replace(" ", "-")
    if word in OTHERS:
        return OTHERS[word]
    known = sorted(known, key=lambda p: p.name)
    shown = [p for p in known if not p.by_name_only]
    if word in FORMATS:
        writers = [p.name for p in shown if FORMATS[word] in (*p.formats, *p.optional_formats)]
        return f"it is a format; targets that write it: {', '.join(writers)}" if writers else ""
    if word in ENGINES:
        users = [p.name for p in shown if ENGINES[word] in p.backends] or [
            p.name for p in known if ENGINES[word] in p.backends
        ]
        return f"it is an engine; targets that it runs: {', '.join(users)}"
    return ""
