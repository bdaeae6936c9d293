"""``edgeinfer tune``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.output import Output, output_options, table
from edgeinfer.cli.trust import trust_options
from edgeinfer.convert.option_words import input_shapes

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.convert.tuning.tune import Tuned

COLUMNS = ("kernel", ">share", ">own", ">tuned", ">engine", ">tried", ">failed", "verdict")


@click.command()
@click.argument("model")
@click.option("-t", "--target", required=True, help="Instruction set, such as tvm-x86-64-v3.")
@click.option("--minutes", default=10.0, show_default=True, help="Time limit in minutes.")
@click.option(
    "--database", metavar="FILE", help="Database of measurements; default tuning-MACHINE.jsonl."
)
@click.option("--trials", default=512, show_default=True, help="Schedules tried per kernel.")
@click.option(
    "--kernels", default=24, show_default=True, help="How many of the hottest kernels to tune."
)
@click.option(
    "--threads", default=1, show_default=True, help="Number of threads of parallel loops."
)
@click.option("--workers", default=1, show_default=True, help="Measurements at once, a CPU each.")
@click.option(
    "--device",
    default="",
    metavar="HOST:PORT[/KEY]|ssh://[USER@]HOST",
    help="TVM RPC server or tracker, or where ssh starts one.",
)
@click.option(
    "--device-name", default="", metavar="CPU", help="Name that its measurements are stored under."
)
@click.option(
    "--input-shape", "shapes", multiple=True, metavar="X=1,3,224,?", help="Sizes of an input."
)
@click.option("--seed", default=1, show_default=True, help="Seed of the search.")
@click.option("-o", "--output", metavar="BUNDLE", help="Write a bundle; tuned if that is faster.")
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle.")
@trust_options(runs=False)
@output_options
def tune(
    model: str,
    target: str,
    minutes: float,
    database: str | None,
    trials: int,
    kernels: int,
    threads: int,
    workers: int,
    device: str,
    device_name: str,
    shapes: tuple[str, ...],
    seed: int,
    output: str | None,
    overwrite: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Search for faster schedules for MODEL's hottest kernels.

    MODEL is a model's file, or a bundle with an ONNX variant in fp32. Every measurement goes into
    the database at once: stop at any time, the same command goes on from there, and several may
    share a file. `edgeinfer convert --records FILE` uses it.
    """
    with out.progress() as progress:
        if progress is not None:
            progress("load the compiler", None)
        from edgeinfer.convert.tuning.tune import TuningRequest
        from edgeinfer.convert.tuning.tune import tune as run

        order = TuningRequest(
            target=target,
            database=Path(database) if database else None,
            minutes=minutes,
            trials=trials,
            tasks=kernels,
            threads=threads,
            workers=workers,
            device=device,
            device_name=device_name,
            input_shapes=input_shapes(shapes) or None,
            output=output,
            overwrite=overwrite,
            seed=seed,
            trust=trust,
        )
        try:
            result = run(model, order, progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("what was measured is kept in the database") from None
    out.result(_data(result), lambda: _view(result))


def _data(result: Tuned) -> dict[str, Any]:
    return {
        "machine": result.where.machine,
        "cpu": result.where.cpu,
        "threads": result.where.threads,
        "engine": result.engine,
        "others": dict(result.others),
        "open_kernels": result.open,
        "database": result.database,
        "kept": result.kept,
        "damaged_lines": result.damaged,
        "kernels": [
            {
                "title": o.task.title,
                "key": o.task.key,
                "calls": o.task.calls,
                "nodes": o.task.nodes,
                "share": o.share,
                "own_us": o.final.before_us if o.final else o.before_us,
                "tuned_us": o.final.us if o.final else None,
                "gain": o.final.gain if o.final else None,
                "spread": o.final.spread if o.final else None,
                "sure": o.final.sure if o.final else None,
                "rounds": o.final.n if o.final else 0,
                "engine_us": o.engine_us,
                "trials": o.trials,
                "failed": o.failed,
                "used": o.is_better,
                "verdict": o.verdict,
            }
            for o in result.outcomes
        ],
        "whole": result.whole,
        "bundle": result.bundle,
        "note": result.note,
    }


def _view(result: Tuned) -> Iterator[str | Table]:
    where = result.where
    yield f"{where.machine} on {where.cpu}, threads: {where.threads}; microseconds of a call"
    if result.engine:
        yield f"share: of the time in {result.engine}, the fastest engine here"
    else:
        yield "share: of the time of the converter's own kernels; no engine was timed"
    yield ""
    rows = [
        (
            o.task.title + (f" (called {o.task.calls} times)" if o.task.calls > 1 else ""),
            "-" if o.share is None else f"{o.share:.1%}",
            _us(o.final.before_us if o.final else o.before_us),
            _us(o.final.us if o.final else None),
            _us(o.engine_us),
            str(o.trials),
            str(o.failed),
            o.verdict,
        )
        for o in result.outcomes
    ]
    yield table(COLUMNS, rows)
    yield ""
    if result.others:
        names = ", ".join(f"{name} {share:.1%}" for name, share in result.others)
        yield f"note: of the time in {result.engine}, not under these names: {names}"
    if result.open:
        yield (
            f"note: {result.open} kernels have open sizes and cannot be tuned; products among them "
            "are plain loops; --input-shape fixes them"
        )
    yield f"{result.kept} measurements of this run in {result.database}"
    if result.damaged:
        yield f"note: {result.damaged} lines of it were cut short and are left out"
    if result.whole is not None:
        whole = result.whole
        others = ", ".join(f"{n} {_us(us)}" for n, us in whole.engines.items())
        yield (
            f"whole model, {whole.rounds} rounds in turns: {_us(whole.before)} before, "
            f"{_us(whole.tuned)} tuned (±{whole.spread:.1%}); {others or 'no other engine'}"
        )
    if result.bundle is not None:
        yield f"{result.bundle}: {result.note}"
    elif not any(o.is_better for o in result.outcomes):
        yield "no kernel is faster so far; the same command goes on from here"
    else:
        yield f"use it: edgeinfer convert MODEL -t TARGET --records {quote(str(result.database))}"


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
