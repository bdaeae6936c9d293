"""The ``edgeinfer`` command.

Each command is one module; nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import os
import sys

from edgeinfer.garbage import look_seldom

LEAST_MB = 192
"""Addresses that NumPy with its OpenBLAS takes; with too few it ends or interrupts the process."""

COMPLETE = "_EDGEINFER_COMPLETE"
"""Set by the shell's completion; see ``edgeinfer completion``."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        _main()
    except KeyboardInterrupt:
        # Before a command has begun, or after it has ended.
        sys.stderr.write("edgeinfer: interrupted\n")
        sys.exit(130)


def _main() -> None:
    _refuse_a_small_limit()
    look_seldom()
    try:
        from edgeinfer.cli.failures import guarded, terminate_cleanly
        from edgeinfer.cli.group import edgeinfer
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(
            f"edgeinfer: the command line needs click: {sys.executable} -m pip install click; "
            "in Python, edgeinfer.load works without it\n"
        )
        sys.exit(3)
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(edgeinfer, {}, "edgeinfer", COMPLETE, instruction))
    terminate_cleanly()
    sys.exit(guarded(edgeinfer, sys.argv[1:]))


def _refuse_a_small_limit() -> None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_MB << 20:
        sys.stderr.write(
            f"edgeinfer: the limit of addresses is {limit >> 20} MB (`ulimit -v`); it takes "
            f"{LEAST_MB} MB or more to start\n"
        )
        sys.exit(3)
