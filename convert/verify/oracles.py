"""The right answer: two independent evaluations of the source model, and a third to vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import onnx_ir as ir

from edgeinfer.convert.verify.vectors import Vector
from edgeinfer.metrics import OutputMetrics
from edgeinfer.types import Array, Feeds, TensorSpec


@dataclass(frozen=True, slots=True)
class Answer:
    """What is expected of one vector.

    Attributes:
        outputs: by output name, in the model's order.
        oracle: whose values these are, e.g. ``onnxruntime``.
        agreed: the oracles that gave the same within tolerance; one name means nobody confirmed.
        spread: by output name, the distance between the first two oracles that ran; empty if
            only one did. It says how much plain rounding moves this model.
        note: why an oracle did not take part, or who disagreed and where; empty when all is well.
    """

    outputs: dict[str, Array]
    oracle: str
    agreed: tuple[str, ...]
    spread: dict[str, OutputMetrics]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected outputs of all vectors, in their order."""

    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
    """For the report: each plain sentence once. Never empty when an answer has one oracle only."""

    @property
    def confirmed(self) -> int:
        """How many answers two oracles agree on."""
        return sum(len(a.agreed) > 1 for a in self.answers)


class Oracles:
    """The oracles of one source model; close them as soon as the answers are there.

    Oracle A is ONNX Runtime without graph optimisation, oracle B an evaluation in float64, op by
    op; where they disagree, the same evaluation in the model's own types and OpenVINO vote.
    """

    def __init__(self, model: ir.Model, *, seconds: float = 60.0) -> None:
        """Open them.

        Args:
            model: as read, before any pass; it is not modified.
            seconds: what oracle B may take for all vectors; those left have one oracle, and the
                notes say so.
        """
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs, without those that have an initializer."""
        raise NotImplementedError

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The model's outputs."""
        raise NotImplementedError

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run oracle A.

        Raises:
            RunError: the model refuses these inputs.
        """
        raise NotImplementedError

    def expected(self, vectors: Sequence[Vector]) -> Expected:
        """Run both oracles on each vector and let a third vote where they disagree.

        Raises:
            VerifyError: no oracle can run the model, or it is random.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Free sessions and temporary files; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Oracles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
