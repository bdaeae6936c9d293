"""Lines that say which variants of other targets are an artifact that a table shows once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def also_lines(also: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Name the others of each shown variant."""
    for name, others in also.items():
        yield f"{name}: the same artifact as {', '.join(others)}"
