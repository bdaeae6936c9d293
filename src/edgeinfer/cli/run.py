"""``edgeinfer run``."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.files import check_output
from edgeinfer.cli.loading import as_loaded, loading_options, steps_shown, told_stats
from edgeinfer.cli.output import Output, milliseconds, output_options, table
from edgeinfer.cli.pipeline_run import WrittenFiles, means_something, run_pipeline
from edgeinfer.cli.ranking import ranking, why
from edgeinfer.errors import UsageError

if TYPE_CHECKING:
    from edgeinfer.bundle.manifest import Manifest
    from edgeinfer.cli.table import Table
    from edgeinfer.runtime.session import Session
    from edgeinfer.types import Array

TOP = 5
SHOWN = 8
"""Elements up to which an output is printed instead of summed up."""


@click.command()
@click.argument("bundle")
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option(
    "--then", multiple=True, metavar="BUNDLE", help="Second-stage bundle, e.g. a text recogniser."
)
@click.option("--overlay", metavar="PNG", help="Draw the results onto the image.")
@click.option("--raw", is_flag=True, help="Print tensors instead of decoded results.")
@click.option(
    "-o",
    "--output",
    metavar="NPZ|WAV",
    help="Save the outputs, named as in the model, or what a voice says.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that is something else.")
@loading_options
@click.option("--repeat", type=click.IntRange(1), default=1, help="Number of timed runs.")
@click.option("-v", "--verbose", is_flag=True, help="Say why this engine, and what else could run.")
@click.option("--allow-nonfinite", is_flag=True, help="Accept NaN and infinity in inputs.")
@output_options
def run(
    bundle: str,
    inputs: tuple[str, ...],
    then: tuple[str, ...],
    overlay: str | None,
    raw: bool,
    output: str | None,
    overwrite: bool,
    repeat: int,
    verbose: bool,
    allow_nonfinite: bool,
    out: Output,
    **loading: Any,
) -> None:
    """Run BUNDLE on images, recordings or arrays.

    INPUT is an .npz with arrays named as the model's inputs, an .npy, an image or a recording;
    NAME=FILE says which input a file is for. Several images, and the windows of a long recording,
    are run in batches, and their outputs are put together.

    Where the bundle says what its outputs mean, an image, a recording or a text gives names,
    boxes, notes or words instead; --raw and -o give tensors. --then names bundles that work
    together with BUNDLE, such as those that turn and read the lines of text that it finds. A model
    that speaks takes a text, or a .txt file, and writes it to the .wav file of -o.
    """
    options = as_loaded(**loading, check_finite=not allow_nonfinite)
    sound = output if output is not None and output.lower().endswith(".wav") else None
    asked = bool(then or overlay or sound)
    means = means_something(bundle, inputs, asked, loading["trust"])
    if not raw and (output is None or sound is not None) and means:
        kept = WrittenFiles(overlay, sound, overwrite)
        run_pipeline((bundle, *then), inputs, kept, options, repeat, out, verbose=verbose)
        return
    if then or overlay:
        raise UsageError("--then and --overlay go with what outputs mean; leave -o and --raw out")
    if output is not None:
        check_output(Path(output), ".npz", b"PK", overwrite=overwrite)
    with out.progress() as progress, steps_shown(progress):
        from edgeinfer import load
        from edgeinfer.bundle.archive import Bundle
        from edgeinfer.media import calls_for, write_arrays

        with Bundle.open(bundle, verify=False, **loading["trust"]) as opened:
            manifest = opened.manifest
        if not inputs and manifest.inputs:
            wanted = "; ".join(map(str, manifest.inputs))
            raise UsageError(f"{bundle}: no INPUT given; the model takes {wanted}")
        # The first input is read before the engine is loaded: a wrong file is found out at once.
        calls = calls_for(inputs, manifest)
        calls = itertools.chain([next(calls)], calls)
        with load(bundle, **options) as session:
            results, times = _run(session, calls, manifest, repeat)
            report, stats = session.report(), told_stats(session, options)
        if output is not None:
            write_arrays(output, results)
    top = _top(results, manifest)
    data = {
        "bundle": bundle,
        "variant": report.variant,
        "backend": report.backend,
        "version": report.version,
        "device": report.device,
        "threads": report.threads,
        "latency_ms": times if repeat > 1 else None,
        "outputs": {name: _summary(array) for name, array in results.items()},
        "top": top,
        "saved": output,
        "notes": list(report.notes),
        "ranking": ranking(report),
    }
    if stats is not None:
        data["stats"] = stats
    out.result(data, lambda: [*_view(data, repeat), *(why([report]) if verbose else [])])


def _run(
    session: Session, calls: Iterator[dict[str, Array]], manifest: Manifest, repeat: int
) -> tuple[dict[str, Array], dict[str, float]]:
    """Run every call, each several times if asked, after one that warms up; join the outputs."""
    results: list[dict[str, Array]] = []
    counts: list[int | None] = []
    spent: list[float] = []
    for feeds in calls:
        if repeat > 1 and not results:
            session.run(feeds)
        for _ in range(repeat):
            start = time.perf_counter()
            outputs = session.run(feeds)
            spent.append((time.perf_counter() - start) * 1e3)
        results.append(outputs)
        counts.append(_count(feeds, manifest))
    ordered = sorted(spent)
    times = {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "runs": len(ordered),
    }
    return joined(results, counts), times


def _count(feeds: dict[str, Array], manifest: Manifest) -> int | None:
    """Return how many images or windows a call holds; None where they have no axis."""
    from edgeinfer.media import has_batch

    for spec in manifest.inputs:
        record = manifest.preprocessing.get(spec.name)
        if record is not None and has_batch(spec, record):
            return len(feeds[spec.name])
    return None


def joined(results: Sequence[dict[str, Array]], counts: Sequence[int | None]) -> dict[str, Array]:
    """Put the outputs of several runs together, along the batch axis where there is one.

    Raises:
        UsageError: the runs gave outputs of different sizes.
    """
    import numpy as np

    if len(results) == 1:
        return results[0]
    whole = {}
    for name in results[0]:
        arrays = [result[name] for result in results]
        batched = all(a.ndim and len(a) == n for a, n in zip(arrays, counts, strict=True))
        try:
            whole[name] = np.concatenate(arrays) if batched else np.stack(arrays)
        except ValueError as e:
            shapes = ", ".join(str(list(a.shape)) for a in arrays[:3])
            raise UsageError(
                f"output {name!r} has another size in each run ({shapes}); give one input at a time"
            ) from e
    return whole


def _top(results: dict[str, Array], manifest: Manifest) -> list[list[dict[str, Any]]] | None:
    """Name the best classes of each row, where the model has labels and one output fits them."""
    labels = manifest.labels
    fitting = [
        a for a in results.values() if a.ndim and a.shape[-1] == len(labels) and a.dtype.kind == "f"
    ]
    if not labels or len(fitting) != 1:
        return None
    rows = fitting[0].reshape(-1, len(labels))
    return [
        [
            {"label": labels[i], "index": int(i), "score": float(row[i])}
            for i in (-row).argsort(kind="stable")[:TOP]
        ]
        for row in rows
    ]


def _summary(array: Array) -> dict[str, Any]:
    data: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.dtype.kind in "OSU":
        data["dtype"] = "string"
    if array.size <= SHOWN:
        data["values"] = array.tolist()
    if array.size and array.dtype.kind in "fiub":
        wide = array.astype("float64")
        data |= {"min": wide.min(), "mean": wide.mean(), "max": wide.max()}
    return data


def _view(data: dict[str, Any], repeat: int) -> Iterator[str | Table]:
    yield (
        f"{data['variant']} on {data['backend']} {data['version']} ({data['device']}), "
        f"{data['threads']} threads"
    )
    yield ""
    for number, row in enumerate(data["top"] or ()):
        if len(data["top"]) > 1:
            yield f"input {number + 1}"
        yield table((">score", "label"), [(f"{c['score']:.4f}", c["label"]) for c in row])
    if not data["top"]:
        columns = ("output", "type", "shape", ">min", ">mean", ">max")
        yield table(columns, [_output_row(n, s) for n, s in data["outputs"].items()])
    if repeat > 1:
        times = data["latency_ms"]
        yield ""
        median, p95 = milliseconds(times["median"]), milliseconds(times["p95"])
        yield f"{times['runs']} runs: median {median}, p95 {p95}"
    if data["saved"]:
        yield f"saved to {data['saved']}"
    if "stats" in data:
        yield str(data["stats"])
    yield from (f"note: {note}" for note in data["notes"])


def _output_row(name: str, summary: dict[str, Any]) -> tuple[str, ...]:
    figures = tuple(f"{summary[k]:.4g}" if k in summary else "-" for k in ("min", "mean", "max"))
    return name, summary["dtype"], str(summary["shape"]), *figures
