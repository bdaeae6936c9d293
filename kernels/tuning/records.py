"""The records that are used when code is made: shipped ones, and the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from edgeinfer.errors import UsageError
from edgeinfer.kernels.tuning.database import FINAL, Database, Record, best
from edgeinfer.kernels.tuning.processor import is_kin

SHIPPED = Path(__file__).parents[1] / "records"


@dataclass(slots=True)
class Known:
    """What there is for a machine.

    Attributes:
        records: of each workload, by its key.
        foreign: shipped ones that were measured on processors of another design only.
    """

    records: dict[str, Record] = field(default_factory=dict)
    foreign: dict[str, Record] = field(default_factory=dict)


def known(machine: str, files: Sequence[Path], cpu: str = "") -> Known:
    """Return the record of each workload for a machine; later files count more.

    Args:
        machine: instruction set.
        files: of the user: these count whatever they were measured on.
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
        found.records |= best(Database(path).read().records, machine, cpu)
    found.foreign = {k: r for k, r in found.foreign.items() if k not in found.records}
    return found


@cache
def _shipped(machine: str) -> tuple[Record, ...]:
    return tuple(
        record
        for path in sorted((SHIPPED / machine).glob("*.jsonl"))
        for record in Database(path).read().records
        if record.kind == FINAL and record.machine == machine and record.won
    )
