"""Whether the precision benchmark judges what it measured."""

from dataclasses import replace

import pytest

from benchmarks.precision_table import Row, markdown, verdict

AUTO = Row("digits", "litert", "auto", 0.97, 0.004, 1.0, 2.0, 100, "static_wi8_ai8")
PEER = replace(AUTO, what="peer", precision="")


@pytest.mark.parametrize(
    ("auto", "peers", "fault"),
    [
        (AUTO, [PEER], ""),
        (AUTO, [], ""),
        (replace(AUTO, drop=0.02), [], "drop 2.00%"),
        (replace(AUTO, size_mb=1.001), [PEER], "1.001 MB, peer 1.000 MB"),
        (replace(AUTO, latency_ms=2.05), [PEER], ""),
        (replace(AUTO, latency_ms=2.2), [PEER], "time of peer x 1.10"),
        # One that loses more than the budget is no measure, whatever its size.
        (AUTO, [replace(PEER, drop=0.02, size_mb=0.1, latency_ms=0.1)], ""),
        # Of two the fastest counts.
        (AUTO, [replace(PEER, size_mb=0.5, latency_ms=9.0), replace(PEER, what="other")], ""),
        (replace(AUTO, samples=0), [PEER], "auto gave nothing"),
    ],
)
def test_auto_is_held_against_its_budget_and_the_best_peer(
    auto: Row, peers: list[Row], fault: str
) -> None:
    (found,) = verdict([auto, *peers])
    assert found.failed == bool(fault)
    assert fault in found.line
    assert found.line.startswith("FAILS" if fault else "holds")


def test_times_are_compared_turn_by_turn() -> None:
    """A machine that is busy in some turns makes both slow in them; the ratio stays."""
    busy = [1.0, 5.0, 1.0, 9.0, 1.0]
    auto = replace(AUTO, times=tuple(1.02 * t for t in busy), latency_ms=9.0)
    peer = replace(PEER, times=tuple(busy), latency_ms=1.0)
    (found,) = verdict([auto, peer])
    assert found.line.endswith("time of peer x 1.02 (1.02..1.02, 5 turns)")
    assert not found.failed
    (slow,) = verdict([replace(auto, times=tuple(1.2 * t for t in busy)), peer])
    assert slow.failed


def test_each_opening_of_the_files_counts_once() -> None:
    """In one opening a file had bad luck with its memory, and that in all of its turns."""
    luck = [1.3] * 9 + [1.01] * 3 + [0.99] * 3
    auto = replace(AUTO, times=tuple(luck), openings=(9, 3, 3))
    peer = replace(PEER, times=(1.0,) * 15, openings=(9, 3, 3))
    (found,) = verdict([auto, peer])
    assert found.line.endswith("time of peer x 1.01 (0.99..1.30, 3 openings, 15 turns)")
    assert not found.failed
    (once,) = verdict([replace(auto, openings=()), replace(peer, openings=())])
    assert once.failed


def test_the_page_has_every_row_and_what_is_lacking() -> None:
    refused = replace(PEER, what="nncf", samples=0, note="it raised")
    page = markdown([AUTO, PEER, refused], ["mail on openvino"])
    assert "| litert | auto | 0.9700 | 0.40% | 1.000 | 2.000 | static_wi8_ai8 |" in page
    assert "| litert | nncf | | | | | it raised |" in page
    assert page.endswith("## Not measured\n\n- mail on openvino\n")


def test_the_page_says_on_which_machines() -> None:
    note = "Rows of mail are of a quiet machine; " + "the others are of a busy one. " * 5
    lines = markdown([AUTO, PEER], note=note).split("\n## ")[0].splitlines()
    assert "Rows of mail are of a quiet machine;" in " ".join(lines)
    noted = [x for x in lines if "mail" in x or "the others" in x]
    assert len(noted) > 1
    assert max(map(len, noted)) <= 100
