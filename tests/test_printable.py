"""Texts of strangers: nothing in them commands a terminal, or begins a line of ours."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edgeinfer import log
from edgeinfer.printable import as_line, visible


def test_a_text_keeps_its_lines_and_a_line_does_not() -> None:
    odd = "é\n\t\r\x1b[31m\u2028\u202e"
    assert visible(odd) == "é\n\t\\r\\x1b[31m\\u2028\\u202e"
    assert as_line(odd) == "é\\n\\t\\r\\x1b[31m\\u2028\\u202e"


def test_what_is_told_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, log.NAME):
        log.warning("%s: %s, %s, %d", "m\nforged", Path("a\x1b"), ValueError("x\ny"), 3)
        log.info("%s", "a\nb")
    assert [record.getMessage() for record in caplog.records] == [
        "m\\nforged: a\\x1b, x\\ny, 3",
        "a\\nb",
    ]
