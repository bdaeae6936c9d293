"""What is asked of a model and what is right: vectors and the oracles' answers, as plain data."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from edgeinfer.metrics import OutputMetrics
from edgeinfer.records import dataclass
from edgeinfer.types import Array


@dataclass(frozen=True, slots=True)
class Vector:
    """One set of inputs.

    Attributes:
        feeds: by input name, all inputs.
        origin: ``user:<file>``, ``calibration:<file>`` or ``synthetic:<what>``.
        edge: an extreme no recipe below fp32 promises to survive; judged at fp32 only.
        reach: Range of a magnitude that nobody ruled out; in half precision what comes out has to
            be finite where it should be, and how near it is is not judged.
        tiny: so small that its outputs are held to their own scale, not to other vectors'.
        given: outputs that the user says are right, by name.
        note: for the report; empty when there is nothing to say.
    """

    feeds: dict[str, Array]
    origin: str
    edge: bool = False
    given: dict[str, Array] = field(default_factory=dict)
    note: str = ""
    reach: bool = False
    tiny: bool = False

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {np.shape(array)}" for name, array in self.feeds.items())
        return f"<Vector {self.origin}: {shapes}>"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is expected of one vector.

    Attributes:
        outputs: by output name, in the model's order.
        oracle: whose values these are, e.g. ``onnxruntime``.
        agreed: the oracles that gave the same within tolerance; one name means nobody confirmed.
        spread: by output name, how much plain rounding moves this model: the distance between two
            evaluations; empty if only one ran.
        undecided: by output name, which elements rounding alone moves: positions of scores that are
            equal but for their last bits. They are not judged.
        shaky: by output name, which elements moving the scores themselves by a few last bits
            changes; only where an artifact is wrong in them they are not judged.
        note: why an oracle did not take part, or who disagreed and where; empty when all is well.
        overflown: by output name, what float64 says of elements that are infinite or no number only
            because a number inside leaves float32; NaN elsewhere. Engines that write such a formula
            otherwise give that, and are right too.
    """

    outputs: dict[str, Array]
    oracle: str
    agreed: tuple[str, ...]
    spread: dict[str, OutputMetrics]
    note: str = ""
    undecided: dict[str, Array] = field(default_factory=dict)
    shaky: dict[str, Array] = field(default_factory=dict)
    overflown: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected outputs of all vectors, in their order."""

    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
    """For the report: each plain sentence once. Never empty when an answer has one oracle only."""
    faults: tuple[str, ...] = ()
    """For the user: oracles that failed at what they should do."""
    contradictions: tuple[str, ...] = ()
    """Outputs that the user expects and the source model does not give: another model is meant."""

    @property
    def confirmed(self) -> int:
        """How many answers two oracles agree on."""
        return sum(len(a.agreed) > 1 for a in self.answers)
