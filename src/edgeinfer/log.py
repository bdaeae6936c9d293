"""What the package tells, through the logger ``edgeinfer``; it is imported where something is said.

``logging`` takes two milliseconds to import, and a load has nothing to tell.
"""

from __future__ import annotations

import sys

NAME = "edgeinfer"


def info(text: str, *values: object) -> None:
    """Tell what is done; nobody listens where ``logging`` was not imported."""
    if "logging" in sys.modules:
        import logging

        logging.getLogger(NAME).info(text, *values, stacklevel=2)


def warning(text: str, *values: object) -> None:
    """Tell what the user should know; without a handler it goes to stderr."""
    import logging

    logging.getLogger(NAME).warning(text, *values, stacklevel=2)
