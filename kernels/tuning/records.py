"""The records that are used when code is made: shipped ones, and the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from edgeinfer.errors import UsageError
from edgeinfer.kernels.tuning.database import Database, Record, best

WORTH = 1.03
"""How many times as fast a tuned kernel must have been to be used."""

SHIPPED = Path(__file__).parents[1] / "records"


def known(machine: str, files: Sequence[Path]) -> dict[str, Record]:
    """Return the record of each workload for a machine; later files count more.

    Raises:
        UsageError: a file is not there.
    """
    found = dict(_shipped(machine))
    for path in files:
        if not path.exists():
            raise UsageError(f"records {str(path)!r}: no such file")
        found |= best(Database(path).read().records, machine)
    return found


@cache
def _shipped(machine: str) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for path in sorted((SHIPPED / machine).glob("*.jsonl")):
        for key, record in best(Database(path).read().records, machine).items():
            if key not in found or record.gain > found[key].gain:
                found[key] = record
    return found
