"""Which node cases count for Core ML, and the tables of docs/coreml-ops.md."""

from __future__ import annotations

from collections import Counter
from functools import cache

from tests.conformance import tflite_table
from tests.conformance.node_cases import Case
from tests.conformance.tflite_table import Results, interface, kind_of

OUTCOMES = ("right", "refused", "wrong", "error", "unrunnable", "crash")
HELD = frozenset(
    {
        *("FLOAT", "FLOAT16", "BOOL", "INT8", "INT16", "INT32", "INT64"),
        *("UINT8", "UINT16", "UINT32", "UINT64"),
    }
)
"""Element types that travel in a package's fp32, fp16 and int32."""


def why_not(case: Case) -> str:
    """Why a case does not count; empty where it does."""
    general = tflite_table.why_not(case)
    if general:
        return general
    kinds = {kind_of(v) for v in interface(case[1])}
    return "" if kinds <= HELD else "inputs or outputs of float64 or bfloat16"


def is_eligible(case: Case) -> bool:
    """Whether a case is one standard operator on tensors whose types Core ML can hold."""
    return not why_not(case)


def holds_types(case: Case) -> bool:
    """Whether Core ML holds the types of a case, whatever else there is to it."""
    return {kind_of(v) for v in interface(case[1])} <= HELD


def groups(cases: list[Case]) -> dict[str, list[str]]:
    """The names of the cases of each row of the first table."""
    return {
        "mobile operators, float32, int32, int64, bool": [
            c[0] for c in cases if tflite_table.is_core(c)
        ],
        "eligible": [c[0] for c in cases if is_eligible(c)],
        "every case on types that Core ML holds": [c[0] for c in cases if holds_types(c)],
        "all cases": [c[0] for c in cases],
    }


def share_refused(results: Results, names: list[str]) -> float:
    """The part that is refused."""
    return sum(results[n].startswith("refused") for n in names) / len(names)


def totals(results: Results, cases: list[Case]) -> list[str]:
    """Lines of the first table."""
    lines = [f"| cases | number | {' | '.join(OUTCOMES)} |", "|---" * (len(OUTCOMES) + 2) + "|"]
    for title, names in groups(cases).items():
        counts = Counter(results[n].split(":")[0] for n in names)
        shares = [f"{counts[o]} ({100 * counts[o] / len(names):.1f} %)" for o in OUTCOMES[:2]]
        rest = [str(counts[o]) for o in OUTCOMES[2:]]
        lines.append(f"| {title} | {len(names)} | {' | '.join([*shares, *rest])} |")
    return lines


def excluded(results: Results, cases: list[Case]) -> list[str]:
    """Lines of the table of cases that are not eligible."""
    counts = Counter(why_not(c) for c in cases)
    right = Counter(why_not(c) for c in cases if results[c[0]] == "right")
    lines = ["| not eligible | cases | right all the same |", "|---|---|---|"]
    return lines + [f"| {r} | {n} | {right[r]} |" for r, n in counts.most_common() if r]


def refusals(results: Results, cases: list[Case]) -> list[str]:
    """Lines of the list of refused cases that are eligible, by what was said."""
    by_words: dict[tuple[str, str], list[str]] = {}
    for case in filter(is_eligible, cases):
        found = results[case[0]]
        if found.startswith("refused"):
            _, reason, words = (*found.split(": ", 2), "")[:3]
            by_words.setdefault((reason, _words(words, reason)), []).append(case[0])
    lines = ["| reason | what is said | cases |", "|---|---|---|"]
    for (reason, words), names in sorted(by_words.items()):
        shown = ", ".join(n.removeprefix("test_") for n in sorted(names))
        lines.append(f"| {reason} | {words} | {len(names)}: {shown} |")
    return lines


def short(results: Results, cases: list[Case]) -> str:
    """The totals and the refusals, of Core AI, whose types are those of Core ML."""
    lines = [line.replace("Core ML", "Core AI") for line in totals(results, cases)]
    return "\n".join([*lines, "", *refusals(results, cases), ""])


def _words(text: str, reason: str) -> str:
    """A message without the name of the node, which says nothing here."""
    return text.split(f"{reason}: ", 1)[-1].replace("|", "\\|")[:160]


@cache
def _families() -> dict[str, str]:
    from edgeinfer.convert.lower.coreml import ops as _  # noqa: F401
    from edgeinfer.convert.lower.coreml.registry import OPS

    known = {e.op: e.function.__module__.rpartition(".")[2] for e in OPS}
    # What a pass takes apart before a lowering sees it.
    other = {"QLinearConv": "quant", "QLinearMatMul": "quant", "ConvInteger": "quant"}
    return {**tflite_table.defined(), **other, **known}


def document(results: Results, cases: list[Case]) -> str:
    """The generated part of docs/coreml-ops.md."""
    counted = [c for c in cases if is_eligible(c)]
    parts = [
        *("## Totals", "", *totals(results, cases), "", *excluded(results, cases), ""),
        *("## Every eligible case that is refused", "", *refusals(results, cases), ""),
        *("## Operator by operator", ""),
        *tflite_table.by_operator(results, counted, _families()),
        "",
    ]
    return "\n".join(parts)
