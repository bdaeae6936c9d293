"""Magnitudes of inputs of which nobody said what they hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeinfer.types import Array, Feeds, InputRange

LARGEST = 6e4
"""What a float input may reach of which nobody said anything: all that half precision holds."""

REACH: Mapping[str, float] = {
    "image": 255.0,
    "state": 100.0,
    "sizes": 16384.0,
    "factor": 100.0,
    "share": 1.0,
}
"""Likewise of kinds that have a unit: pixels have eight bits, and a state is a model's own."""

LADDER = (1e-2, 1.0, 1e2, 1e4, LARGEST)
"""Magnitudes at which half precision is judged where nobody said what an input holds."""


def rungs(feeds: Feeds, ranges: Mapping[str, InputRange]) -> list[dict[str, Array]]:
    """Return an ordinary input at each magnitude that nobody ruled out.

    Args:
        feeds: the ordinary one.
        ranges: Ranges of float inputs; what somebody said keeps its magnitude.

    Returns:
        One for each step of the ladder; none where every range was said.
    """
    free = {name: max(abs(r.low), abs(r.high)) for name, r in ranges.items() if r.source == "guess"}
    found = []
    for step in LADDER if free else ():
        one = dict(feeds)
        for name, most in free.items():
            array = np.asarray(feeds[name], np.float64)
            largest = float(np.abs(array).max(initial=0.0))
            if not largest:
                # A state begins with zeros; later it holds anything.
                array = np.random.default_rng(0).standard_normal(array.shape)
                largest = float(np.abs(array).max(initial=0.0)) or 1.0
            one[name] = (array * (min(step, most) / largest)).astype(feeds[name].dtype)
        found.append(one)
    return found
