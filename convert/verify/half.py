"""Half precision as devices compute it: every operator's result is rounded.

ONNX Runtime's CPU provider computes half-precision graphs in single precision between casts of its
own, and OpenVINO and LiteRT unpack half-precision weights into single precision. What passes there
may still overflow on a GPU. Here each operator reads and gives halves; products, sums and other
reductions inside of one add up in single precision and are rounded once, which is what GPUs, the
Neural Engine and Arm's half-precision units do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.verify.answers import Answer, Expected, Vector
from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator
from edgeinfer.convert.verify.gate import HALF, EngineResult, judge_answers
from edgeinfer.metrics import Budget
from edgeinfer.types import Array, Feeds

SECONDS = 60.0
"""CPU time after which no further vector is begun."""

_NAMES = {"": "fp16", "float16": "fp16", "bfloat16": "bf16", "tf32": "tf32"}


def ask_in_half(
    model: ir.Model,
    vectors: Sequence[Vector],
    expected: Expected,
    budget: Budget,
    *,
    everywhere: str = "",
    seconds: float = SECONDS,
    kind: str = "",
    usual: Sequence[Answer] = (),
) -> EngineResult:
    """Evaluate a graph in half precision and hold it to a budget.

    Args:
        model: an artifact, in its own types; or a float graph.
        vectors: inputs; those that are no extremes are run, as many as time allows, and those of a
            magnitude that nobody ruled out, of which only infinities are judged.
        expected: the oracles' answers to all of them.
        budget: what may be lost.
        everywhere: compute float32 in this type too, ``float16`` or ``bfloat16``, as a device does
            that has nothing else; of ``tf32`` the operands of products are, as GPUs do.
        seconds: Duration in seconds of CPU time.
        kind: the precision's name, where the graph has it in its own types.
        usual: the oracles' answers to more vectors, where these are some of them.
    """
    result = EngineResult(HALF, np.__version__, stands_in=True)
    is_tf32 = everywhere == "tf32"
    evaluator = Evaluator(model, wide=False, halved="" if is_tf32 else everywhere, tf32=is_tf32)
    kind = kind or _NAMES[everywhere]
    wanted = [i for i, v in enumerate(vectors) if not v.edge or v.reach]
    done: list[int] = []
    answers: list[dict[str, Array]] = [{} for _ in vectors]
    until = time.thread_time() + seconds
    try:
        for index in wanted:
            left = until - time.thread_time()
            if left <= 0:
                break
            answers[index] = run_in_half(evaluator, vectors[index].feeds, seconds=left)
            done.append(index)
    except CannotEvaluate as e:
        if not done:
            return replace(result, skipped=f"not checked in {kind} arithmetic: {e}")
    if not done:
        return replace(result, skipped=f"not checked in {kind} arithmetic: no ordinary inputs")
    usual = usual or [expected.answers[i] for i in wanted if not vectors[i].reach]
    outputs = judge_answers(answers, vectors, expected, budget, usual=usual, half=True, judged=done)
    rule = "operands of products rounded to tf32, all else in fp32"
    if not is_tf32:
        rule = f"results of all operators rounded to {kind}, sums inside of one in fp32"
    note = f"{len(done)} of {len(wanted)} inputs in {kind} arithmetic: {rule}"
    return replace(result, outputs=tuple(outputs), notes=(note,))


def run_in_half(
    evaluator: Evaluator, feeds: Feeds, *, seconds: float = float("inf")
) -> dict[str, Array]:
    """Run once; the results have the types of the graph's outputs.

    Raises:
        CannotEvaluate: an operator is unknown or failed, or time is up.
    """
    return {n: np.asarray(y) for n, y in evaluator.run(feeds, seconds=seconds).items()}


def ask_file(
    path: Path, vectors: Sequence[Vector], expected: Expected, budget: Budget, kind: str = "fp16"
) -> EngineResult:
    """Check an ONNX file."""
    return ask_in_half(ir.load(path), vectors, expected, budget, kind=kind)


def run_file(path: Path, feeds: Feeds) -> dict[str, Array]:
    """Run an ONNX file once.

    Raises:
        CannotEvaluate: an operator is unknown or failed.
    """
    return run_in_half(Evaluator(ir.load(path), wide=False), feeds)


def sentence(result: EngineResult, where: str) -> str:
    """Say in one line what a check of arithmetic that is not the engine's own has found."""
    if result.skipped:
        return f"{where}: {result.skipped}"
    breach = next((b for o in result.outputs for b in o.breaches), "")
    verdict = "within the budget"
    if breach:
        name = next(o.name for o in result.outputs if o.breaches)
        verdict = f"NOT within the budget (output {name!r}: {breach}): it is right in fp32 only"
    return f"{where}: {verdict}; {result.notes[0]}"
