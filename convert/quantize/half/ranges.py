"""Which operators leave what half precision holds, seen on real inputs in single precision.

Half precision ends at 65504 and has nothing below 6e-8. A result beyond that is infinite, whatever
the engine; inner squares, exponentials and sums go beyond it long before the result does. What is
found here stays in single precision, on top of the operators that always do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.lower.halve import LARGEST, SMALLEST_NORMAL, only_masks
from edgeinfer.convert.quantize.calibrate.observe import watched
from edgeinfer.errors import RunError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

MARGIN = 2.0
"""Other inputs may reach further than those that were seen."""

SAMPLES = 8
"""Inputs that are looked at; ranges of magnitudes hardly move after that."""

SECONDS = 60.0
"""CPU time of one input where ONNX Runtime cannot run the model."""

_SQUARES = math.sqrt(LARGEST)
_SUMMED = "squares"
_LIMITS: dict[str, tuple[float, str]] = {
    **dict.fromkeys(
        (
            "LayerNormalization",
            "InstanceNormalization",
            "GroupNormalization",
            "RMSNormalization",
            "MeanVarianceNormalization",
            "LpNormalization",
            "ReduceL2",
            "ReduceSumSquare",
        ),
        (_SQUARES, _SUMMED),
    ),
    **dict.fromkeys(("Exp", "Softplus", "Mish", "Sinh", "Cosh"), (math.log(LARGEST), "exp")),
    "Gelu": (LARGEST ** (1 / 3), "cubes"),
}
"""Largest magnitude of the first operand whose inner results still fit, and what those are."""

_MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool"})
_HANDS_ON = MOVES | {"Concat", "Add"}


_SMALL_MATTER: dict[str, int] = {"Log": 0, "Reciprocal": 0, "Div": 1}
"""Operators that blow up what is near zero, and the operand that they do it with."""

_FEW = 0.005
"""Share of an operand's elements that may be below the normal numbers of half precision there."""


class Inside(str):
    """A reason that lies inside of an operator: it goes where sums are in single precision."""

    __slots__ = ()


@dataclass(slots=True)
class _Extremes:
    """What was seen of a value.

    Attributes:
        largest: magnitude; of a mask's elements those that mask nothing.
        elements: Elements of one sample at most.
        some: elements that are not zero.
        small: those of them that half precision holds with fewer bits than others.
    """

    largest: float = 0.0
    elements: int = 0
    some: int = 0
    small: int = 0

    def take(self, array: Array, masked: bool) -> None:
        finite = array[np.isfinite(array)]
        if masked:
            finite = finite[finite > -LARGEST]
        self.elements = max(self.elements, array.size)
        if finite.size:
            sizes = np.abs(finite)
            self.largest = max(self.largest, float(sizes.max()))
            some = int(np.count_nonzero(sizes))
            self.some += some
            self.small += int(np.count_nonzero(sizes < SMALLEST_NORMAL)) - (sizes.size - some)

    @property
    def share(self) -> float:
        """Share of the small among those that are not zero."""
        return self.small / self.some if self.some else 0.0


def outside(model: ir.Model, samples: Sequence[Feeds], *, margin: float = MARGIN) -> dict[str, str]:
    """Find what has to stay in single precision.

    Args:
        model: normalised, float; it is not modified.
        samples: inputs; the first few are run.
        margin: how many times further other inputs may reach.

    Returns:
        Why, by the name of a node's first result.

    Raises:
        RunError: the model failed on a sample.
    """
    values = {
        v.name: v
        for v in (*model.graph.inputs, *(o for n in model.graph for o in n.outputs))
        if v.name and v.dtype == ir.DataType.FLOAT
    }
    taken = list(samples[:SAMPLES])
    if not values or not taken:
        return {}
    masked = _masked(model)
    seen = {name: _Extremes() for name in values}
    for arrays in _values(model, list(values), taken):
        for name, array in arrays.items():
            seen[name].take(np.asarray(array), name in masked)
    found = {}
    for node in model.graph:
        why = _why(node, seen, margin) if not node.domain else ""
        if why and node.outputs and node.outputs[0].name:
            found[node.outputs[0].name] = why
    _before_logarithms(model, seen, found)
    return found


def _before_logarithms(
    model: ir.Model, seen: Mapping[str, _Extremes], found: dict[str, str]
) -> None:
    """Add what computes the small numbers that matter, as far up as there are any."""
    for node in model.graph:
        at = _SMALL_MATTER.get(node.op_type)
        if at is None or node.domain or at >= len(node.inputs):
            continue
        waiting = [node.inputs[at]]
        while waiting:
            value = waiting.pop()
            maker = None if value is None else value.producer()
            stats = seen.get(value.name or "") if value is not None else None
            if maker is None or stats is None or stats.share <= _FEW:
                continue
            name = maker.outputs[0].name or ""
            if name in found:
                continue
            found[name] = (
                f"{stats.share:.1%} of its results are below the normal numbers, "
                f"and {node.op_type} follows"
            )
            waiting += maker.inputs


def _values(
    model: ir.Model, names: list[str], samples: Sequence[Feeds]
) -> Iterator[Mapping[str, Array]]:
    """Give the named values of each sample, by ONNX Runtime or where it cannot, in NumPy."""
    from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator

    try:
        yield from watched(model, names, lambda: iter(samples))
    except RunError as first:
        evaluator = Evaluator(model, wide=False)
        try:
            for feeds in samples:
                yield evaluator.run(feeds, seconds=SECONDS, wanted=names)
        except CannotEvaluate as e:
            raise RunError(f"{first}; {e}") from first


def describe(model: ir.Model, found: Mapping[str, str]) -> list[str]:
    """Return lines for the report."""
    makers = {v.name: n for n in model.graph for v in n.outputs}
    return [f"fp16: {makers[v].op_type} {v!r} needs fp32: {why}" for v, why in found.items()]


def _why(node: ir.Node, seen: Mapping[str, _Extremes], margin: float) -> str:
    for value in (*node.outputs, *node.inputs):
        name = "" if value is None else value.name or ""
        stats = seen.get(name)
        if stats is None:
            continue
        if stats.largest * margin > LARGEST:
            return f"{name!r} reaches {stats.largest:.3g}"
        if 0 < stats.largest < SMALLEST_NORMAL:
            return f"{name!r} is {stats.largest:.3g} at most"
    first = seen.get(node.inputs[0].name or "") if node.inputs and node.inputs[0] else None
    if first is None:
        return ""
    limit, what = _LIMITS.get(node.op_type, (math.inf, ""))
    if first.largest > limit:
        reason = f"{what} of {first.largest:.3g} inside"
        return Inside(reason) if what == _SUMMED else reason
    return _long_mean(node, seen, margin)


def _long_mean(node: ir.Node, seen: Mapping[str, _Extremes], margin: float) -> str:
    """Say whether the sum that a mean is made of may leave the range."""
    if node.op_type not in _MEANS or node.inputs[0] is None:
        return ""
    result = seen.get(node.outputs[0].name or "")
    source = seen.get(node.inputs[0].name or "")
    if result is None or source is None:
        return ""
    count = source.elements / max(1, result.elements)
    if node.op_type == "AveragePool":
        count = float(np.prod(node.attributes["kernel_shape"].as_ints()))
    total = count * result.largest
    return Inside(f"a sum of {total:.3g} inside") if total * margin > LARGEST else ""


def _masked(model: ir.Model) -> set[str]:
    """Return the values that hold a mask's "minus infinity", which half precision has its own for.

    Those are made with a constant below the range, or moved or added on from there.
    """
    found: set[str] = set()
    for node in model.graph:
        operands = [v for v in node.inputs if v is not None]
        made = any(only_masks(node, v) for v in operands)
        moved = node.op_type in _HANDS_ON and any(v.name in found for v in operands)
        if made or moved:
            found |= {v.name or "" for v in node.outputs}
    return found
