"""``edgeinfer verify``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.declared import declared
from edgeinfer.cli.device import device_option
from edgeinfer.cli.loading import time_limit_option
from edgeinfer.cli.names import BACKEND, named
from edgeinfer.cli.output import Output, output_options, table, together
from edgeinfer.cli.threads import within
from edgeinfer.cli.trust import TRUST_FILES, trust_options
from edgeinfer.runtime.options import SessionOptions

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.runtime.verification import BundleVerification, Checked


@click.command()
@click.argument("bundle")
@named("-b", "--backend", type=BACKEND, help="Only this engine; default every one here.")
@declared(SessionOptions, ("threads", "allow_fallback"))
@time_limit_option(600.0)
@trust_options("--key")
@output_options
@device_option("bundle", *TRUST_FILES)
def verify(
    bundle: str,
    backend: str | None,
    threads: int | None,
    allow_fallback: bool,
    time_limit: float,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Check BUNDLE here, with its own test vectors.

    Every artifact is run on every engine of this device and compared with the expected outputs.
    Machine code is run only where a trusted key signed BUNDLE, where this machine made it, or with
    --allow-native; otherwise it is listed as not run. Exits with 1 when an artifact leaves its
    accuracy budget on an engine.
    """
    from edgeinfer.runtime.verification import verify as verified

    threads = within(threads, out)
    with out.progress() as progress:
        found = verified(
            bundle,
            backend=backend,
            threads=threads,
            allow_fallback=allow_fallback,
            time_limit_s=time_limit,
            progress=progress,
            **trust,
        )
    data = {
        "passed": found.passed,
        "vectors": found.vectors,
        "signed_by": found.signed_by or None,
        "checked": found.checked,
        "not_run": found.not_run,
    }
    out.result(data, lambda: _view(found))
    if not found.passed:
        raise click.exceptions.Exit(1)


def _view(found: BundleVerification) -> Iterator[str | Table]:
    checked, vectors = found.checked, found.vectors
    columns = ("variant", "engine", "device", ">error", ">signal", "verdict")
    yield table(columns, [_row(c) for c in checked])
    yield ""
    for line in checked:
        yield from (f"{line.variant} on {line.backend}: {problem}" for problem in line.problems)
    for line in checked:
        numbers = ", ".join(map(str, line.refused))
        if numbers:
            yield f"{line.variant} on {line.backend}: refuses the values of vector {numbers}"
    yield from together(
        (f"{line.variant} on {line.backend}", f"not judged, as rounding alone decides: vector {n}")
        for line in checked
        for n in line.undecided
    )
    yield from together(
        (f"{line.variant} on {line.backend}", f"only within the widened budget: {text}")
        for line in checked
        for text in line.widened
    )
    yield from (f"not run: {rejected}" for rejected in found.not_run)
    if found.signed_by:
        yield f"signed by key {found.signed_by}"
    failed = sum(not c.passed for c in checked)
    count = f"{vectors} test vector" + ("s" if vectors != 1 else "")
    wide = sum(c.passed and bool(c.widened) for c in checked)
    verdict = f"{failed} of {len(checked)} FAILED" if failed else "all within budget"
    verdict += f", {wide} of {len(checked)} only within a widened one" if wide else ""
    yield f"{count} on each: {verdict}"


def _row(checked: Checked) -> tuple[str, ...]:
    engine = f"{checked.backend} {checked.version}"
    if not checked.metrics:
        return checked.variant, engine, checked.device, "-", "-", checked.verdict
    largest = max(m.max_rel for m in checked.metrics.values())
    lowest = min(m.sqnr_db for m in checked.metrics.values())
    error = "equal" if largest == 0 else f"{largest:.1e}"
    signal = "exact" if lowest == float("inf") else f"{lowest:.0f} dB"
    return checked.variant, engine, checked.device, error, signal, checked.verdict
