"""Random small graphs as Core ML packages: right, or refused with a reason."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("coremltools")

from tests.conformance.coreml_fuzz import described, draw, run

FEW, MANY = 12, 600


def check(first: int, count: int, least: float) -> None:
    with np.errstate(all="ignore"):
        found = run(first, count)
    faults = [
        f"{seed}: {what}: {described(draw(seed)[0])}"
        for seed, what in found.items()
        if not what.startswith(("right", "refused"))
    ]
    assert not faults, "\n".join(faults)
    right = Counter(what.split(":")[0] for what in found.values())["right"]
    assert right >= least * count, found


def test_graphs_differ_and_repeat() -> None:
    texts = [described(draw(seed)[0]) for seed in (0, 1, 2, 0)]
    assert texts[0] == texts[3]
    assert len(set(texts)) == 3
    assert all(3 <= len(draw(seed)[0].graph.node) <= 6 for seed in range(4))


def test_a_few_random_graphs() -> None:
    check(0, FEW, 0.9)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_graphs() -> None:
    check(FEW, MANY, 0.95)
