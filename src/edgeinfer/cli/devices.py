"""``edgeinfer devices``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.output import Output, output_options, size, table

if TYPE_CHECKING:
    from edgeinfer.backends.base import Probe
    from edgeinfer.cli.table import Table
    from edgeinfer.machine.board import Gpu
    from edgeinfer.machine.fingerprint import Facts, Fingerprint


@click.command()
@output_options
def devices(out: Output) -> None:
    """Show this machine and what each engine can use of it."""
    from edgeinfer.runtime.here import devices as found

    here = found()
    out.result(here, lambda: _view(here.machine, here.facts, here.backends))


def _view(machine: Fingerprint, facts: Facts, probes: tuple[Probe, ...]) -> Iterator[str | Table]:
    cpus = f"{machine.cpus} CPU" + ("s" if machine.cpus > 1 else "")
    memory = f", {size(machine.memory_mb << 20)} memory" if machine.memory_mb else ""
    yield f"{machine.cpu} ({machine.arch}, {machine.os}), {cpus}{memory}"
    yield "features: " + (" ".join(machine.features) or "unknown")
    yield from _facts(facts)
    yield ""
    yield table(("backend", "version", "device", "name"), _rows(probes))


def _facts(facts: Facts) -> Iterator[str]:
    """What is known beyond the processor; nothing is said of what is not."""
    board, power = facts.board, facts.power
    if named := ", ".join(filter(None, (board.model, board.system))):
        jetpack = f", JetPack {board.jetpack} (L4T {board.l4t})" if board.l4t else ""
        yield f"board: {named}{jetpack}"
    if len(facts.cpu.clusters) > 1:
        kinds = [f"{len(c.cpus)} x {c.name or 'core'}" for c in facts.cpu.clusters]
        yield f"clusters: {', '.join(kinds)}"
    if facts.cpu.caches:
        caches = [f"L{c.level} {c.size_kb} KiB" for c in facts.cpu.caches]
        yield f"caches: {', '.join(caches)}"
    for gpu in facts.gpus:
        yield ", ".join((f"gpu: {gpu.name}", *_gpu(gpu)))
        yield from (f"!! gpu {gpu.name}: {complaint}" for complaint in gpu.complaints)
    if limit := facts.limits.memory_bytes:
        yield f"memory limit: {size(limit)}"
    if power.mode:
        yield f"power: {power.mode}" + (", on battery" if power.battery else "")
    if power.celsius:
        hottest = max(power.celsius, key=lambda zone: power.celsius[zone])
        yield f"temperature: {power.celsius[hottest]:.0f} °C ({hottest})"
    yield from (f"!! {complaint}" for complaint in power.complaints)


def _gpu(gpu: Gpu) -> Iterator[str]:
    for label, value in (
        ("compute capability", gpu.compute_capability),
        ("driver", gpu.driver),
        ("CUDA", gpu.cuda),
        ("TensorRT", gpu.tensorrt),
    ):
        if value:
            yield f"{label} {value}"
    if gpu.memory_mb:
        free = "" if gpu.free_mb is None else f" ({size(gpu.free_mb << 20)} free)"
        yield f"{size(gpu.memory_mb << 20)} memory{free}"
    if gpu.celsius is not None:
        yield f"{gpu.celsius:.0f} °C"
    if gpu.power_limit_w is not None:
        yield f"limited to {gpu.power_limit_w} W"


def _rows(probes: tuple[Probe, ...]) -> Iterator[tuple[str, str, str, str]]:
    for probe in probes:
        if not probe.available:
            yield probe.backend, probe.version or "-", "none", probe.reason
        for unit in probe.devices:
            yield probe.backend, probe.version or "-", f"{unit.kind}:{unit.index}", unit.name
