"""The shape of a device profile; unknown keys are errors."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from edgeinfer.records import dataclass

FORMATS = frozenset({"onnx", "openvino_ir", "tflite", "mlprogram", "aimodel", "tvm", "onnx_tvm"})
"""Artifact formats of a manifest's variants."""

OSES = frozenset({"linux", "macos", "windows", "android", "ios"})

ARCHES = frozenset({"x86_64", "aarch64", "armv7l"})

ACCELERATORS = frozenset({"gpu", "npu"})

Unit = Literal["cpu", "gpu", "npu"]

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
        "static_wi8_ai8+fp16",
        "weight_only_wi8_afp16",
        "weight_only_wi4b32_afp16",
        "fp8",
    }
)
"""Recipe names: ``wi8`` 8-bit integer weights, ``ai8`` activations, ``b32`` blocks of 32."""


MACHINE_CODE = ("model", "regions", "functions")
"""Kinds of machine code that can be requested: of a whole model, of parts of it, around it."""


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


FLOAT8 = "float8_e4m3fn"

STORED = frozenset({"int8", "uint8", FLOAT8})
"""Types that 8-bit activations are stored in."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """What one format's engine computes with integers, and in which form it wants them.

    Attributes:
        format: the artifact format.
        ops: operators with integer kernels.
        moves: operators that pass integers on unchanged.
        per_channel: operators whose weights may have one scale for each output channel.
        activations: type of 8-bit activations: ``int8``, ``uint8``, or ``float8_e4m3fn`` in a table
            of its own for the recipe ``fp8``.
        symmetric: activations have no zero point.
        float_results: operators that take integers and may give floats, so that what is read by
            float operators only is not rounded.
        joined: operators whose operands and result must share one scale.
        whole_blocks: blocks of weights must fill the summed axis; others get 8 bits a channel.
        flat: convolutions over two axes and products with one matrix only have kernels for stored
            weights (``units.is_flat``); others stay float.
        smaller_blocks: where they do not, smaller blocks are taken that do, if there are any.
        positive_blocks: scales of blocks are positive and have the precision of bfloat16.
        half_blocks: likewise, of float16.
        float_bias: a bias is written as floats, with the very values that 32 bits hold.
        fallbacks: what layers that stay float may become instead, where that is smaller or faster:
            ``wi8``, ``dynamic``, ``ai16``, ``fp16``.
        late_tables: rows of a constant are taken as integers and made floats after, not before.
        bare_weights: weights are written without their zero points, which are zero.
        recurrent: operators with a state whose weights are stored as integers and whose arithmetic
            is the engine's to choose.
        bodies: where weights of If, Loop and Scan, stored as integers, are made floats: ``inside``
            next to what reads them, or ``before`` a loop, once for all its turns; empty where no
            form is known that the engine runs.
        same_bits: normalisations and attention between integers are written so that every engine
            computes the same bits: for engines that compute floats in single precision.
    """

    format: str
    ops: tuple[str, ...]
    moves: tuple[str, ...]
    per_channel: tuple[str, ...]
    activations: str = "int8"
    symmetric: bool = False
    float_results: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    float_bias: bool = False
    bare_weights: bool = False
    late_tables: bool = False
    fallbacks: tuple[str, ...] = ("wi8", "fp16")
    whole_blocks: bool = False
    flat: bool = False
    smaller_blocks: bool = False
    positive_blocks: bool = False
    half_blocks: bool = False
    recurrent: tuple[str, ...] = ()
    same_bits: bool = False
    bodies: str = ""


@dataclass(frozen=True, slots=True)
class Computes:
    """Floats of fewer bits in which an engine can compute a file of single precision.

    Attributes:
        format: the artifact format.
        floats: ``bf16``, ``fp16`` or ``tf32``.
    """

    format: str
    floats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chip:
    """What one processor of a family of devices computes, beyond what all of them do.

    Attributes:
        name: as the system names it, e.g. ``M2``; variants such as ``M2 Pro`` count as it.
        npu: what its neural processor multiplies at full speed: ``fp16``, ``int8``.
        source: link or document it is known from.
        note: what the source leaves open; empty where it names the chip.
    """

    name: str
    npu: tuple[str, ...]
    source: str
    note: str = ""

    @property
    def has_int8(self) -> bool:
        """Whether 8-bit activations make a model faster than half precision."""
        return "int8" in self.npu


def chip_of(chips: tuple[Chip, ...], processor: str) -> Chip | None:
    """Return the chip that a processor's name stands for, e.g. ``Apple M2 Pro``."""
    words = f" {processor} "
    found = [chip for chip in chips if f" {chip.name} " in words]
    return max(found, key=lambda chip: len(chip.name), default=None)


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
        unit: kind of unit that its artifacts are meant for; run on another one they were not run.
        memory_mb: memory of the device; None when it varies.
        threads: cores worth using; None when it varies.
        quirks: known faults.
        quantization: how integers are written, by format: names of tables in ``quantization/``, or
            tables; without it integer recipes are refused.
        aliases: other names ``--target`` takes for it.
        deployment: oldest system that is to open Core ML packages, e.g. ``iOS17``.
        chips: the processors that its devices have, where they differ in what they compute.
        packed_weights: its engine unpacks weights from palettes and from sparse forms, so recipes
            such as ``weight_only_wp4_afp16`` can be requested.
        machine: instruction set that machine code is made for, e.g. ``x86-64-v3``.
        machine_code: kinds of ``MACHINE_CODE`` that can be requested in addition to the
            formats; ``functions`` are for every Linux.
        strongly_typed: its engine compiles the whole graph and takes types from it, as TensorRT
            does: files hold standard operators only, and roundings as pairs around each operator.
        split_attention: precisions in which its engine is faster with products and a softmax than
            with ``Attention``, at lengths that were measured.
        fp16_ops: operators that its engine has kernels for in half precision which add up in single
            precision, so that it needs no more of single precision around them; empty where only
            those are that every engine computes well enough.
        bf16_ops: operators that its engine has kernels for in bfloat16; empty for all that the
            standard allows.
        computes: Floats in which its engines can be set to compute files of single precision.
        by_name_only: ``all`` leaves it out: a beta, or for tools or machines that few have.
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
    unit: Unit = "cpu"
    memory_mb: int | None = None
    threads: int | None = None
    quirks: tuple[Quirk, ...] = field(default=())
    quantization: tuple[Quantization, ...] = field(default=())
    aliases: tuple[str, ...] = ()
    deployment: str = ""
    machine: str = ""
    machine_code: tuple[str, ...] = ()
    strongly_typed: bool = False
    split_attention: tuple[str, ...] = ()
    fp16_ops: tuple[str, ...] = ()
    bf16_ops: tuple[str, ...] = ()
    by_name_only: bool = False
    packed_weights: bool = False
    chips: tuple[Chip, ...] = field(default=())
    computes: tuple[Computes, ...] = field(default=())

    def on_request(self, format: str) -> tuple[str, ...]:
        """Return the floats that the engine of a format can be set to compute in."""
        return tuple(kind for c in self.computes if c.format == format for kind in c.floats)
