"""What a device checks over all bundled vectors together, and each by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer import channels
from edgeinfer.metrics import Budget, check, compare, winners_lost
from edgeinfer.parts import alike
from edgeinfer.types import Array

Outputs = Mapping[str, Array]


def lost_channels(
    expected: Sequence[Outputs], actual: Sequence[Outputs], budget: Budget
) -> tuple[str, ...]:
    """Say which channels lost what they vary by, and winners, as the gate does.

    Args:
        expected: outputs of all vectors that are judged.
        actual: what came out here.
        budget: Budget of the variant's precision.
    """
    found = []
    for name in expected[0] if expected else ():
        right = [e[name] for e in expected]
        here = [alike(e, a[name]) for e, a in zip(right, actual, strict=True)]
        right = [e if isinstance(e, list) else np.asarray(e) for e in right]
        allowed = budget.among(right)
        # Where rounding alone moves an output, its vectors were judged by wider budgets.
        pairs = zip(right, here, strict=True)
        if any(
            check(compare(e, a, channel_floor=allowed.channel_floor), allowed) for e, a in pairs
        ):
            continue
        lines = channels.breaches(right, here, allowed)
        lines += winners_lost([compare(e, a) for e, a in zip(right, here, strict=True)], allowed)
        found += [f"output {name!r}: {line}" for line in lines]
    return tuple(found)
