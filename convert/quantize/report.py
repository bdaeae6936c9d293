"""How far each layer is off, alone and with all before it: where a budget is lost."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.convert.quantize.calibrate.observe import open_session, with_outputs
from edgeinfer.convert.quantize.calibration import Quantizer
from edgeinfer.media.samples import SampleSet
from edgeinfer.profiles.schema import Quantization
from edgeinfer.records import dataclass

SAMPLES = 8
"""Samples that layers are compared on."""

WORST = 3
"""Layers that the summary names."""


@dataclass(frozen=True, slots=True)
class LayerError:
    """One unit in the written graph, compared with the float graph.

    Attributes:
        name: Name of the unit.
        op: its operator.
        kept: whether it stays float.
        sqnr_db: signal to error of its result before rounding, errors of earlier layers included;
            None where nothing is wrong.
    """

    name: str
    op: str
    kept: bool
    sqnr_db: float | None


def layer_errors(
    quantizer: Quantizer,
    limits: Quantization,
    data: SampleSet,
    kept: AbstractSet[str] = frozenset(),
) -> list[LayerError]:
    """Compare every unit's result in the float graph and in the written one."""
    model = quantizer.model
    units = [u for u in quantizer.units(limits) if u.kind != "move"]
    whole = quantizer.write(limits, kept=kept)
    written, divided = whole.model, whole.divided
    present = {v.name for n in written.graph for v in n.outputs}
    # What becomes an output of the model is read after its rounding.
    names = [u.result.name or "" for u in units if u.result.name in present]
    if not names:
        # Without a request ONNX Runtime gives every output.
        return []
    signal, noise = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        sessions = []
        for index, graph in enumerate((model, written)):
            place = Path(folder) / str(index)
            place.mkdir()
            sessions.append(open_session(with_outputs(graph, names), place))
        for feeds in itertools.islice(data.feeds(), SAMPLES):
            before, after = (s.run(names, dict(feeds)) for s in sessions)
            for name, a, b in zip(names, before, after, strict=True):
                signal[name] += float(np.sum(np.square(a, dtype=np.float64)))
                found = b * np.float64(divided.get(name, 1.0))
                noise[name] += float(np.sum(np.square(a.astype(np.float64) - found)))
        del sessions
    return [
        LayerError(u.name, u.op, u.name in kept, _decibel(signal[n], noise[n]))
        for u in units
        if (n := u.result.name or "") in signal
    ]


def _decibel(signal: float, noise: float) -> float | None:
    if noise == 0.0:
        return None
    return round(10.0 * math.log10(signal / noise), 2) if signal > 0 else -math.inf


def to_json(errors: list[LayerError]) -> list[dict[str, Any]]:
    """Return JSON-ready data; JSON has no infinity, so a lost signal has -999 dB."""
    rows = [asdict(e) for e in errors]
    for row in rows:
        if row["sqnr_db"] == -math.inf:
            row["sqnr_db"] = -999.0
    return rows


def summary(title: str, errors: list[LayerError]) -> str:
    """Name the worst layers in one sentence."""
    found = [(e.sqnr_db, e) for e in errors if e.sqnr_db is not None]
    found.sort(key=lambda item: item[0])
    worst = ", ".join(f"{e.op} {e.name!r} {db:.1f} dB" for db, e in found[:WORST])
    return f"{title}: largest errors after {worst}" if worst else f"{title}: no layer differs"
