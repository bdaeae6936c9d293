"""``edgeinfer devices``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.output import Output, output_options, size, table

if TYPE_CHECKING:
    from rich.table import Table

    from edgeinfer.backends.base import Probe
    from edgeinfer.runtime.devices import Fingerprint


@click.command()
@output_options
def devices(out: Output) -> None:
    """Show this machine and what each engine can use of it."""
    from edgeinfer.backends import registry
    from edgeinfer.runtime.devices import fingerprint

    machine, probes = fingerprint(), registry.probe_all()
    out.result({"machine": machine, "backends": probes}, lambda: _view(machine, probes))


def _view(machine: Fingerprint, probes: tuple[Probe, ...]) -> Iterator[str | Table]:
    cpus = f"{machine.cpus} CPU" + ("s" if machine.cpus > 1 else "")
    memory = f", {size(machine.memory_mb << 20)} memory" if machine.memory_mb else ""
    yield f"{machine.cpu} ({machine.arch}, {machine.os}), {cpus}{memory}"
    yield "features: " + (" ".join(machine.features) or "unknown")
    yield ""
    yield table(("backend", "version", "device", "name"), _rows(probes))


def _rows(probes: tuple[Probe, ...]) -> Iterator[tuple[str, str, str, str]]:
    for probe in probes:
        if not probe.available:
            yield probe.backend, probe.version or "-", "none", probe.reason
        for unit in probe.devices:
            yield probe.backend, probe.version or "-", f"{unit.kind}:{unit.index}", unit.name
