"""Results of pipelines as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgeinfer.cli.output import table
from edgeinfer.results import (
    Audio,
    Classification,
    DepthMap,
    Detection,
    Embedding,
    Pitch,
    Reply,
    Result,
    Segmentation,
    Text,
    VoiceActivity,
    WakeWord,
)

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
_SHOWN = 6
"""Numbers of a vector that are printed."""


def as_table(results: Sequence[Result]) -> Iterator[str | Table]:
    """Show the results of one input."""
    if not results:
        yield "nothing found"
        return
    for kind in dict.fromkeys(map(type, results)):
        rows = [_row(result) for result in results if type(result) is kind]
        yield table(_COLUMNS[kind], [row for found in rows for row in found])


_COLUMNS: dict[type, tuple[str, ...]] = {
    Classification: (">score", "label"),
    Detection: (">score", "label", ">left", ">top", ">right", ">bottom"),
    Segmentation: (">share", "class"),
    DepthMap: (">width", ">height", ">least", ">most", "near is"),
    Embedding: (">numbers", "first"),
    Pitch: (">start", ">end", "note", ">strength"),
    VoiceActivity: (">start", ">end", ">score"),
    WakeWord: (">time", ">score", "word"),
    Text: (">score", "text", ">left", ">top"),
    Reply: ("reply", "finish"),
    Audio: (">seconds", ">Hz", ">loudest", "left out"),
}


def _row(result: Result) -> list[tuple[str, ...]]:
    match result:
        case Classification():
            return [(f"{result.score:.4f}", result.label)]
        case Detection():
            return [(f"{result.score:.4f}", result.label, *(f"{x:.1f}" for x in result.box))]
        case Segmentation():
            shares = sorted(result.shares.items(), key=lambda pair: -pair[1])
            return [(f"{share:.1%}", result.name(index)) for index, share in shares]
        case DepthMap():
            height, width = result.values.shape
            limits = (f"{result.values.min():.4g}", f"{result.values.max():.4g}")
            near = "most" if result.nearer_is_larger else "least"
            return [(str(width), str(height), *limits, near)]
        case Embedding():
            first = " ".join(f"{x:.4f}" for x in result.vector[:_SHOWN])
            return [(str(len(result.vector)), first)]
        case Pitch():
            times = (f"{result.start:.2f} s", f"{result.end:.2f} s")
            return [(*times, result.name, f"{result.strength:.2f}")]
        case VoiceActivity():
            return [(f"{result.start:.2f} s", f"{result.end:.2f} s", f"{result.score:.2f}")]
        case WakeWord():
            return [(f"{result.time:.2f} s", f"{result.score:.2f}", result.label)]
        case Audio():
            loudest = abs(result.samples).max(initial=0.0)
            lost = " ".join(map(repr, result.left_out))
            return [(f"{result.seconds:.2f}", str(result.rate), f"{loudest:.2f}", lost)]
        case Reply():
            return [(result.text, result.finish)]
        case Text():
            corner = [f"{x:.0f}" for x in result.corners[0]] if result.corners else ["", ""]
            return [(f"{result.score:.2f}", result.text, *corner)]
