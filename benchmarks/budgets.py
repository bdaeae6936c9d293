"""How far plain forms of a net are from floats, next to what the task loses by them.

    python -m benchmarks.budgets --tasks mnist,silero-vad [--engines onnxruntime,litert]
        [--precisions static_wi8_ai8,fp16]

Each task of ``benchmarks.precision`` is written in each precision without asking the gate, in
integers by ONNX Runtime's own static quantizer too, and run on held-out samples. Every sample is
measured as the gate measures a vector; the least and the largest figure of each file stand next to
its quality. The budgets in ``metrics.BUDGETS`` are drawn between files that kept their quality and
files that lost it; ``docs/budgets.md`` has the figures that they were drawn from.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import platformdirs

from benchmarks.precision import ENGINES, TASKS, opened, plain, prepared, source_of, theirs
from benchmarks.precision_case import Case
from benchmarks.precision_table import PLAIN
from edgeinfer.convert.quantize.search.quality import Judgement
from edgeinfer.errors import EdgeInferError
from edgeinfer.metrics import OutputMetrics, budget_for, check, compare, worst
from edgeinfer.types import Array

OURS = "edgeinfer"

TESTS = 200
"""Held-out samples that are run."""

VECTORS = 16
"""Of them, spread over all: as many as the gate takes of a set."""


@dataclass(frozen=True, slots=True)
class Distance:
    """One file next to floats.

    Attributes:
        task: of the net.
        engine: that ran both.
        maker: of the file.
        precision: that was requested.
        quality: of held-out samples, by the task's own measure.
        drop: share of the floats' quality that is gone.
        max_rel: the largest error, of the largest value.
        sqnr_db: the least signal to error of a sample.
        channel_sqnr_db: the same, of the worst channel.
        cosine: the least.
        top1: share of decided winners kept; None where there are none.
        refused: by the budget of the precision, and for what.
    """

    task: str
    engine: str
    maker: str
    precision: str
    quality: float
    drop: float
    max_rel: float
    sqnr_db: float
    channel_sqnr_db: float
    cosine: float
    top1: float | None
    refused: str


def distances(case: Case, engine: str, precisions: Sequence[str], work: Path) -> Iterator[Distance]:
    """Measure edgeinfer's files, and ONNX Runtime's integers where the engine runs them.

    A precision that the engine's target does not have is told, and is none.
    """
    source = source_of(case)
    files = {(OURS, "fp32"): plain(case, source, engine, "fp32", work).path}
    for precision in precisions:
        try:
            files[OURS, precision] = plain(case, source, engine, precision, work).path
        except EdgeInferError as e:
            print(
                f"| {case.name} | {engine} | {precision} | none: {str(e).splitlines()[0][:200]} |"
            )
    if engine == "onnxruntime" and PLAIN in precisions:
        output = work / f"{case.name}-{engine}-onnxruntime.onnx"
        data = work / f"{case.name}-peers.npz"
        fault = theirs(Path(sys.executable), "onnxruntime", case.model, data, output)
        if not fault:
            files["onnxruntime", PLAIN] = output
    answers: dict[tuple[str, str], list[dict[str, Array]]] = {}
    vectors: dict[tuple[str, str], dict[int, dict[str, Array]]] = {}
    count = min(TESTS, len(case.tests))
    chosen = np.unique(np.linspace(0, count - 1, VECTORS).astype(int))
    for key, path in files.items():
        with opened(path, engine, source) as executable:
            answers[key] = case.run(executable, TESTS)
            # Each by itself, with the states of floats: as the gate runs them.
            vectors[key] = {i: dict(executable.run(case.tests[i])) for i in chosen}
    judgement = Judgement([*answers.pop((OURS, "fp32"))], list(case.answers[:count]), case.metric)
    right = vectors.pop((OURS, "fp32"))
    for (maker, precision), found in vectors.items():
        loss = judgement.loss(answers[maker, precision])
        seen, refused = [], []
        for name in right[chosen[0]]:
            budget = budget_for(precision).among(right[i][name] for i in chosen)
            each = [
                compare(right[i][name], found[i][name], channel_floor=budget.channel_floor)
                for i in chosen
            ]
            refused += [line for m in each for line in check(m, budget)][:1]
            # What the floor excuses says nothing of the ratios.
            seen += [m for m in each if m.max_abs > budget.max_abs]
        total: OutputMetrics = worst(seen)
        yield Distance(
            case.name,
            engine,
            maker,
            precision,
            loss.quality,
            loss.drop,
            total.max_rel,
            total.sqnr_db,
            total.channel_sqnr_db,
            total.cosine,
            total.top1,
            "; ".join(refused),
        )


def line(found: Distance) -> str:
    """Return a row of the table."""
    top1 = "-" if found.top1 is None else f"{found.top1:.3f}"
    return (
        f"| {found.task} | {found.engine} | {found.maker} | {found.precision} "
        f"| {found.quality:.4f} | {found.drop:.1%} | {found.max_rel:.3f} | {found.sqnr_db:.1f} "
        f"| {found.channel_sqnr_db:.1f} | {found.cosine:.4f} | {top1} | {found.refused} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    place = Path(platformdirs.user_cache_dir("edgeinfer-precision"))
    parser.add_argument("--tasks", default="mnist,silero-vad")
    parser.add_argument("--engines", default="onnxruntime,openvino,litert")
    parser.add_argument("--precisions", default=PLAIN)
    parser.add_argument("--work", type=Path, default=place)
    parser.add_argument("--json", type=Path, help="add the figures to a file")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows: list[Distance] = []
    for task in given.tasks.split(","):
        case = prepared(task, given.work) if task in TASKS else parser.error(f"no task {task!r}")
        for engine in given.engines.split(","):
            if engine not in ENGINES:
                parser.error(f"no engine {engine!r}")
            try:
                for row in distances(case, engine, given.precisions.split(","), given.work):
                    rows.append(row)
                    print(line(row), flush=True)
            except EdgeInferError as e:
                print(f"| {task} | {engine} | refused: {str(e).splitlines()[0][:200]} |")
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
