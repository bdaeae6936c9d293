"""What the package tells, through the logger ``edgeinfer``; it is imported where something is said.

``logging`` takes two milliseconds to import, and a load has nothing to tell.
"""

from __future__ import annotations

import os
import sys

from edgeinfer.printable import as_line

NAME = "edgeinfer"


def info(text: str, *values: object) -> None:
    """Tell what is done; nobody listens where ``logging`` was not imported."""
    if "logging" in sys.modules:
        import logging

        logging.getLogger(NAME).info(text, *map(_shown, values), stacklevel=2)


def warning(text: str, *values: object) -> None:
    """Tell what the user should know; without a handler it goes to stderr."""
    import logging

    logging.getLogger(NAME).warning(text, *map(_shown, values), stacklevel=2)


def _shown(value: object) -> object:
    """Return a value that begins no line; the name of a file may, and what an error says of it."""
    return as_line(str(value)) if isinstance(value, (str, os.PathLike, Exception)) else value
