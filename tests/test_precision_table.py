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
        (replace(AUTO, latency_ms=2.2), [PEER], "2.200 ms, peer 2.000 ms"),
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


def test_the_page_has_every_row_and_what_is_lacking() -> None:
    refused = replace(PEER, what="nncf", samples=0, note="it raised")
    page = markdown([AUTO, PEER, refused], ["mail on openvino"])
    assert "| litert | auto | 0.9700 | 0.40% | 1.000 | 2.000 | static_wi8_ai8 |" in page
    assert "| litert | nncf | | | | | it raised |" in page
    assert page.endswith("## Not measured\n\n- mail on openvino\n")
