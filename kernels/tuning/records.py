"""The records that are used when code is made: shipped ones, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path

from edgeinfer.errors import UsageError
from edgeinfer.kernels.tuning.database import FINAL, Database, Read, Record, best
from edgeinfer.kernels.tuning.processor import is_kin
from edgeinfer.records import dataclass

SHIPPED = Path(__file__).parents[1] / "records"


@dataclass(slots=True)
class Known:
    """What there is for a machine.

    Attributes:
        records: Records of each workload, by its key.
        foreign: shipped ones that were measured on processors of another design only.
        named: keys of the orders that pay, by the user's files that hold some.
        notes: what the user's files lack, and why.
    """

    records: dict[str, Record] = field(default_factory=dict)
    foreign: dict[str, Record] = field(default_factory=dict)
    named: dict[str, frozenset[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def known(machine: str, files: Sequence[Path], cpu: str = "") -> Known:
    """Return the record of each workload for a machine; later files count more.

    Args:
        machine: instruction set.
        files: Files of the user: these count whatever they were measured on.
        cpu: name of the processor that the code is for; empty where the machine names one design,
            or a GPU, and says all there is to say.

    Raises:
        UsageError: a file is not there.
    """
    found = Known()
    for record in _shipped(machine):
        fits = not cpu or is_kin(record.cpu, cpu)
        kept = found.records if fits else found.foreign
        if record.key not in kept or record.sure > kept[record.key].sure:
            kept[record.key] = record
    for path in files:
        if not path.exists():
            raise UsageError(f"records {str(path)!r}: no such file")
        read = Database(path).read()
        usable = best(read.records, machine, cpu)
        found.records |= usable
        won = frozenset(k for k, r in usable.items() if r.won)
        if won:
            found.named[str(path)] = won
        found.notes += _lacking(path, read, usable, machine)
    found.foreign = {k: r for k, r in found.foreign.items() if k not in found.records}
    return found


def _lacking(path: Path, read: Read, usable: Mapping[str, Record], machine: str) -> list[str]:
    """Say what a file lacks: nothing of it would be used otherwise, in silence."""
    found = []
    if read.damaged:
        found.append(f"{path}: {read.damaged} lines of it are no records and were left out")
    if not usable:
        others = sorted({r.machine for r in read.records if r.kind == FINAL} - {machine})
        only = f", only for {', '.join(others)}" if others else ""
        found.append(f"{path}: it has no tuned kernel for {machine}{only}")
    elif not any(r.won for r in usable.values()):
        found.append(f"{path}: no order in it is faster than the converter's own kernels")
    return found


@cache
def _shipped(machine: str) -> tuple[Record, ...]:
    return tuple(
        record
        for path in sorted((SHIPPED / machine).glob("*.jsonl"))
        for record in Database(path).read().records
        if record.kind == FINAL and record.machine == machine and record.won
    )
