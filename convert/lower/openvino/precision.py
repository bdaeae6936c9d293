"""Read back which floating-point types a written IR holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

_NAMES = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64"}
_PORTS = {"FP16": "f16", "BF16": "bf16", "FP32": "f32", "FP64": "f64"}
_ORDER = ("fp16", "bf16", "fp32", "fp64")


def read_back(path: Path) -> tuple[str, dict[str, int]]:
    """Return the precision and the operator counts of an IR.

    Joins the types of constants and of values between nodes, e.g. ``fp16+fp32`` for fp16 weights
    computed in fp32. An IR without floats reads ``fp32``: nothing in it is below.
    """
    root = ET.parse(path).getroot()
    found: set[str] = set()
    ops: Counter[str] = Counter()
    for layer in root.iter("layer"):
        kind = layer.get("type", "")
        if kind in ("Parameter", "Result"):
            continue
        if kind != "Const":
            ops[kind] += 1
        found |= {
            _NAMES[_PORTS[p]]
            for port in layer.iterfind("output/port")
            if (p := port.get("precision", "")) in _PORTS
        }
    return "+".join(n for n in _ORDER if n in found) or "fp32", dict(sorted(ops.items()))
