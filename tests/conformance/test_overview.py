"""The page of all operators says what the tables of the targets say."""

import re

from tests.conformance.overview import DOCS as PAGES
from tests.conformance.overview import DOCUMENT, TABLES, Counted, read, table, versions, written

PAGE = DOCUMENT.read_text("utf-8")


def _since() -> dict[str, str]:
    """The opsets that the page has: which ones there are is the installed onnx package's word."""
    return dict(re.findall(r"^\| ([A-Z]\w+) \| ([\d, ]*) \|", PAGE, re.MULTILINE))


def test_the_page_is_made_of_the_tables() -> None:
    assert written(PAGE, _since()) == PAGE, "python -m tests.conformance.overview"


def test_every_case_of_every_target_is_in_it() -> None:
    for name in TABLES.values():
        text = (PAGES / name).read_text("utf-8")
        titles = re.findall(r"^### .*: (\d+) of (\d+)$", text, re.MULTILINE)
        rows = read(PAGES / name).values()
        assert sum(int(right) for right, _ in titles) == sum(row.right for row in rows) > 900
        assert sum(int(cases) for _, cases in titles) == sum(row.cases for row in rows)


def test_the_opsets_are_those_of_the_standard() -> None:
    known, page = versions(), _since()
    assert known["Relu"].startswith("1, 6, 13")
    assert page["Relu"] == "1, 6, 13, 14"
    both = known.keys() & page.keys()
    assert len(both) > 150
    # An older onnx package lacks the newest definitions.
    assert all(page[op].startswith(known[op]) or known[op].startswith(page[op]) for op in both)


def test_exceptions_are_counted_by_operator() -> None:
    lines = table(_since()).splitlines()
    (shift,) = (line for line in lines if line.startswith("| BitShift |"))
    assert shift.endswith("|  | 11 refused |")
    (steps,) = (line for line in lines if line.startswith("| DequantizeLinear |"))
    assert "5 of 14: 9 unsupported_dtype" in steps


def test_a_row_says_what_is_refused() -> None:
    assert str(Counted(19, 16, "3 unsupported_dtype")) == "16 of 19: 3 unsupported_dtype"
    assert str(Counted(2, 2, "")) == "2 of 2"
