"""Axes that are named twice, or that do not exist, are refused wherever a node names some."""

from __future__ import annotations

import pytest

from edgeinfer.convert.lower.core.named import MalformedRefusal, named_axes


@pytest.mark.parametrize("axes", [[1, 1], [3, -1], [4], [-5]])
def test_they_are_refused(axes: list[int]) -> None:
    with pytest.raises(MalformedRefusal, match="axes="):
        named_axes(axes, 4)


def test_others_are_counted_from_the_front() -> None:
    assert named_axes([-1, 0, 2], 4) == [3, 0, 2]
