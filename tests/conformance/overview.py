"""What docs/conformance.md says of every operator: the tables of all targets side by side.

``python -m tests.conformance.overview`` writes the page out of docs/*-ops.md, which runs of the
node suite have written, and of lowering.toml, which such runs are held against.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tests.conformance.node_cases import suite
from tests.conformance.test_lowering import exceptions

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = DOCS / "conformance.md"
MARK = "<!-- Written by python -m tests.conformance.overview -->"

TABLES = {"TFLite": "tflite-ops.md", "Core ML": "coreml-ops.md", "TVM": "tvm-ops.md"}
"""Targets with a table of operators."""

HELD = {"ONNX": "onnxruntime", "OpenVINO": "openvino"}
"""Formats whose every case is held against the plain engine's, with exceptions by name."""

_ROW = re.compile(r"^\| ([A-Z]\w+) \| (\d+) \| (\d+) \| ([^|]*) \|$", re.MULTILINE)
_LISTED = "## Operator by operator"


@dataclass(frozen=True)
class Counted:
    """The cases of one operator on one target."""

    cases: int
    right: int
    refused: str

    def __str__(self) -> str:
        share = f"{self.right} of {self.cases}"
        return f"{share}: {self.refused}" if self.refused else share


def read(document: Path) -> dict[str, Counted]:
    """Return the rows of a target's table, by operator."""
    _, _, listed = document.read_text("utf-8").partition(_LISTED)
    listed, _, _ = listed.partition("\n## ")
    rows = _ROW.findall(listed)
    return {op: Counted(int(cases), int(right), why.strip()) for op, cases, right, why in rows}


def excepted(target: str) -> dict[str, str]:
    """Return by operator what cases do otherwise than their engine by itself."""
    operators = {c[0]: c[1].graph.node[0].op_type for c in suite() if len(c[1].graph.node) == 1}
    found: dict[str, Counter[str]] = {}
    for case, exception in exceptions(target, anywhere=True).items():
        if case in operators:
            kind = "refused"
            if exception.outcome != "refused":
                within = "" if exception.within is None else f" within {exception.within:g}"
                kind = f"off{within}"
            found.setdefault(operators[case], Counter())[kind] += 1
    return {
        op: ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
        for op, counts in found.items()
    }


def versions() -> dict[str, str]:
    """Return the opsets that changed each operator of the standard, by the onnx package."""
    found: dict[str, set[int]] = {}
    schemas: Any = onnx.defs
    for schema in schemas.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {op: ", ".join(map(str, sorted(since))) for op, since in found.items()}


def rows(since: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the page."""
    known = {title: read(DOCS / name) for title, name in TABLES.items()}
    held = {title: excepted(target) for title, target in HELD.items()}
    listed: list[Iterable[str]] = [*known.values(), *held.values()]
    for op in sorted({op for each in listed for op in each}):
        counted = (str(table.get(op, "not counted")) for table in known.values())
        yield (op, since.get(op, ""), *counted, *(table.get(op, "") for table in held.values()))


def table(since: Mapping[str, str]) -> str:
    """Return the generated part of the page."""
    columns = ("operator", "changed in opset", *TABLES, *(f"{t}: exceptions" for t in HELD))
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows(since))])


def written(text: str, since: Mapping[str, str]) -> str:
    """Return the page with the table as it is to be."""
    head, _, _ = text.partition(MARK)
    return f"{head}{MARK}\n\n{table(since)}\n"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8"), versions()), "utf-8")
