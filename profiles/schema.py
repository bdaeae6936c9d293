"""The shape of a device profile; unknown keys are errors."""

from __future__ import annotations

from dataclasses import dataclass, field

FORMATS = frozenset({"onnx", "openvino_ir", "tflite", "mlprogram", "tvm"})
"""Artifact formats of a manifest's variants."""

OSES = frozenset({"linux", "macos", "windows", "android", "ios"})

ARCHES = frozenset({"x86_64", "aarch64", "armv7l"})

ACCELERATORS = frozenset({"gpu", "npu"})

PRECISIONS = frozenset(
    {
        "fp32",
        "fp16",
        "bf16",
        "static_wi8_ai8",
        "static_wi8_ai16",
        "dynamic_wi8_afp32",
        "weight_only_wi8_afp32",
        "weight_only_wi4b32_afp32",
        "fp8",
    }
)
"""Recipe names: ``wi8`` 8-bit integer weights, ``ai8`` activations, ``b32`` blocks of 32."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """A known fault of a device or engine, and what is done about it.

    Attributes:
        id: short name, used in notes and reports.
        what: the fault in one line.
        source: link or document it is known from.
        versions: PEP 440 specifier of the engine versions concerned; empty means all.
    """

    id: str
    what: str
    source: str
    versions: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one target device is and wants.

    Attributes:
        name: as given to ``--target``; lower-case letters, digits, ``.``, ``_`` and ``-``.
        title: one line for people.
        os: systems it exists on (``linux``, ``macos``, ``windows``, ``android``, ``ios``).
        arch: machine architectures (``x86_64``, ``aarch64``, ``armv7l``); empty means any.
        formats: artifact formats written for it, all required.
        backends: in order of preference before anything was measured.
        precisions: recipes the device can run.
        optional_formats: written too when their library is installed; the report says if not.
        accelerators: kinds of unit beyond the CPU (``gpu``, ``npu``).
        memory_mb: memory of the device; None when it varies.
        threads: cores worth using; None when it varies.
        quirks: known faults.
        aliases: other names ``--target`` takes for it.
    """

    name: str
    title: str
    os: tuple[str, ...]
    arch: tuple[str, ...]
    formats: tuple[str, ...]
    backends: tuple[str, ...]
    precisions: tuple[str, ...]
    optional_formats: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    memory_mb: int | None = None
    threads: int | None = None
    quirks: tuple[Quirk, ...] = field(default=())
    aliases: tuple[str, ...] = ()
