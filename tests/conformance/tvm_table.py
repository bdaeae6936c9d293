"""The tables of docs/tvm-ops.md: what comes of the node cases, and of the zoo for Arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tests.conformance.node_cases import Case
from tests.conformance.tflite_table import (
    Results,
    by_operator,
    defined,
    excluded,
    is_single,
    totals,
)

GPU_ZOO = "<!-- Written by python -m tests.zoo.emulated --target tvm-sm-90 --table -->"
ZOO = "<!-- Written by python -m tests.zoo.emulated --table -->"

_ARM = {"cortex-a72": "Cortex-A72", "cortex-a76": "Cortex-A76"}
GPUS = {"sm-90": "NVIDIA H200"}


def families() -> dict[str, str]:
    """The file of each operator's lowering."""
    from edgeinfer.convert.lower.tvm import ops as _  # noqa: F401
    from edgeinfer.convert.lower.tvm.registry import OPS

    known = {e.op: e.function.__module__.rpartition(".")[2] for e in OPS if not e.domain}
    split = dict.fromkeys(("QLinearConv", "QLinearMatMul", "ConvInteger"), "quant")
    return {**defined(), **split, **known}


def nodes(results: Results, cases: list[Case]) -> str:
    """The part of the document that the node cases give."""
    parts = ["## Totals", "", *totals(results, cases), "", *excluded(results, cases), ""]
    parts += ["## Operator by operator", ""]
    parts += by_operator(results, filter(is_single, cases), families())
    return "\n".join([*parts, ""])


def zoo(
    rows: Iterable[tuple[str, str, str, float | None, int]],
    places: Mapping[str, str] = _ARM,
) -> str:
    """The part that the models give: model, target, outcome, error, vectors."""
    found: dict[str, dict[str, tuple[str, float | None, int]]] = {}
    for model, target, outcome, error, vectors in rows:
        found.setdefault(model, {})[target.removeprefix("tvm-")] = (outcome, error, vectors)
    counts = Counter(o for by in found.values() for o, _, _ in by.values())
    told = ", ".join(f"{n} {o}" for o, n in counts.most_common())
    lines = [f"{len(found)} models, {sum(counts.values())} libraries: {told}.", ""]
    lines += [f"| model | {' | '.join(places.values())} | vectors |"]
    lines += ["|---" * (len(places) + 2) + "|"]
    for model, by in sorted(found.items()):
        cells = [_cell(by.get(t)) for t in places]
        vectors = max(v for _, _, v in by.values())
        lines.append(f"| {model} | {' | '.join(cells)} | {vectors} |")
    return "\n".join([*lines, ""])


def _cell(found: tuple[str, float | None, int] | None) -> str:
    if found is None:
        return "not run"
    outcome, error, _ = found
    return outcome if error is None else f"{outcome}, {error:.1e}"


def replaced(document: str, mark: str, text: str) -> str:
    """Return a document with a generated part made anew: from its mark to the end of the part."""
    head, rest = document.split(mark)
    _, end, tail = rest.partition("<!-- End -->")
    separated = f"\n{end}" if end else ""
    return f"{head}{mark}\n\n{text}{separated}{tail}"
