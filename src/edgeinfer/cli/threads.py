"""How many threads a command keeps busy."""

from __future__ import annotations

from edgeinfer.cli.output import Output


def within(threads: int | None, out: Output) -> int | None:
    """Return as many threads as this process may keep busy, and say where that is fewer.

    Args:
        threads: as requested; None leaves them to the engine.
        out: where to say it.
    """
    if threads is None:
        return None
    from edgeinfer.machine.cores import cores_here

    cores = cores_here(threads, ())
    if cores.note:
        out.remark(f"note: {cores.note}")
    return cores.threads
