"""Sizes of outputs that a signature promises: an axis named as one of an input has its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Feeds, TensorSpec

Examples = Callable[[], Iterable[tuple[Feeds, Feeds]]]
"""Gives right answers: inputs and outputs by name."""


_shape = attrgetter("shape")


def _key(outputs: list[str], inputs: list[str]) -> Callable[[Feeds, Any], object]:
    """Return what tells shapes of outputs and inputs; it is called by each run."""
    if len(outputs) == 1 and len(inputs) < 2:
        output = outputs[0]
        if not inputs:
            return lambda _, results: results[output].shape
        given = inputs[0]
        return lambda feeds, results: (results[output].shape, feeds[given].shape)
    # An itemgetter of one name gives no tuple, and there is none of no name.
    take, get = (itemgetter(*n) if len(n) > 1 else None for n in (outputs, inputs))

    def shapes(feeds: Feeds, results: Any) -> object:
        ends = take(results) if take else [results[n] for n in outputs]
        starts = get(feeds) if get else [feeds[n] for n in inputs]
        return (*map(_shape, ends), *map(_shape, starts))

    return shapes


@dataclass(frozen=True, slots=True)
class _Rule:
    """An axis of an output and the axis of an input that has its name."""

    output: str
    axis: int
    input: str
    of: int
    name: str

    def broken(self, feeds: Feeds, results: Mapping[str, Any]) -> bool:
        """Whether sizes differ; not where one of the tensors is missing."""
        if self.output not in results or self.input not in feeds:
            return False
        given, found = feeds[self.input].shape, results[self.output].shape
        # An example may be of another rank than the signature says.
        if self.axis >= len(found) or self.of >= len(given):
            return False
        return bool(found[self.axis] != given[self.of])


class KnownSizes:
    """Holds answers to the sizes of their inputs.

    Args:
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        examples: right answers, which are requested only when a size is another: a name in a
            model may be wrong, and then its answers are right all the same.
    """

    def __init__(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], examples: Examples
    ) -> None:
        self._outputs = outputs
        origins: dict[str, tuple[str, int]] = {}
        for spec in inputs:
            for axis, dim in enumerate(spec.shape or ()):
                if isinstance(dim, str):
                    origins.setdefault(dim, (spec.name, axis))
        self._rules = [
            _Rule(spec.name, axis, *origins[dim], dim)
            for spec in outputs
            for axis, dim in enumerate(spec.shape or ())
            if isinstance(dim, str) and dim in origins
        ]
        self._examples: Examples | None = examples
        given = sorted({rule.input for rule in self._rules})
        self.key = _key([spec.name for spec in outputs], given)
        """Returns the shapes of an answer and those that decide them: what was right once is
        right for the same."""

    def settled(self, feeds: Feeds, results: dict[str, Any]) -> dict[str, Any]:
        """Give answers without elements the sizes that are promised.

        Of a loop that made no turn an engine does not know how large its rows would be: ONNX
        Runtime says 0, OpenVINO 1 or what the run before had.
        """
        for spec in self._outputs:
            array = results.get(spec.name)
            if (
                not isinstance(array, np.ndarray)
                or array.size
                or array.ndim != len(spec.shape or ())
            ):
                continue
            known = zip(spec.shape or (), array.shape, strict=True)
            shape = [want if isinstance(want, int) else size for want, size in known]
            for rule in self._broken(feeds, results):
                if rule.output == spec.name:
                    shape[rule.axis] = feeds[rule.input].shape[rule.of]
            if tuple(shape) != array.shape and not prod(shape):
                results = {**results, spec.name: array.reshape(shape)}
        return results

    def fault(self, feeds: Feeds, results: Mapping[str, Any]) -> str:
        """Say which output has another size than its inputs give it; empty where none has."""
        broken = self._broken(feeds, results)
        if not broken:
            return ""
        rule = broken[0]
        wanted = feeds[rule.input].shape[rule.of]
        return (
            f"output {rule.output!r}: expected {rule.name} = {wanted} in axis {rule.axis}, as in "
            f"input {rule.input!r}, the engine gave shape {list(results[rule.output].shape)}"
        )

    def _broken(self, feeds: Feeds, results: Mapping[str, Any]) -> list[_Rule]:
        broken = [rule for rule in self._rules if rule.broken(feeds, results)]
        if broken and self._examples is not None:
            examples, self._examples = list(self._examples()), None
            self._rules = [
                r for r in self._rules if not any(r.broken(fed, right) for fed, right in examples)
            ]
            broken = [rule for rule in broken if rule in self._rules]
        return broken
