"""The ``edgeinfer`` command.

Each command is one module; nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        from edgeinfer.cli.failures import guarded
        from edgeinfer.cli.group import edgeinfer
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(guarded(edgeinfer, sys.argv[1:]))
