"""Silence for libraries whose chatter is reported as an error or a note anyway."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    """Switch Python logging off."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Switch logging, warnings and what is printed off."""
    with (
        quiet_logging(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
