"""Pages of what a command prints."""

from pathlib import Path

from edgeinfer.cli.page import write_page
from edgeinfer.cli.table import table


def test_lines_and_tables(tmp_path: Path) -> None:
    rows = table(("name", ">ms"), [("fast", "1.5"), ("slow", "20")])
    write_page(tmp_path / "p.html", "Times", ["before", "", rows])
    text = (tmp_path / "p.html").read_text()
    assert "<title>Times</title>" in text
    assert "<p>before</p>" in text
    assert '<tr><th>name</th><th class="right">ms</th></tr>' in text
    assert '<tr><td>slow</td><td class="right">20</td></tr>' in text
    assert "<p></p>" not in text


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    rows = table(("name",), [("<img src=x onerror=alert(1)>",)])
    write_page(tmp_path / "p.html", "</title><script>", ["a & b \x1b[31m", rows])
    text = (tmp_path / "p.html").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "a &amp; b" in text
    assert "\x1b" not in text


def test_no_page_is_no_file(tmp_path: Path) -> None:
    write_page(None, "x", ["y"])
    assert list(tmp_path.iterdir()) == []
