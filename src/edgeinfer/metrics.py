"""How close an output is to the expected one, and the budgets that say whether that will do.

One table serves the conversion gate and the re-check on the device.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.errors import UsageError
from edgeinfer.parts import alike, whole_shape
from edgeinfer.records import dataclass
from edgeinfer.types import Array

if TYPE_CHECKING:
    import numpy.typing as npt

_MIN_SLICE = 16
"""A channel of fewer elements is judged with the whole output: a single value near zero has no
meaningful ratio to its own error."""

SLACK = 30.0
"""How many times further apart than two oracles an engine may be. Their distance is one draw of the
rounding error, and a small one by luck where an output has few elements: log-scaled spectra of near
silence (basic-pitch) were 6 times as far off in three engines alike, a two-way classifier of a
blank page (PP-OCR) 10 times. It matters only where rounding alone nearly fills the budget."""

WIDENED = f"pass, budget widened x{SLACK:g} (oracles disagree)"
"""The verdict on what only ``Budget.widened`` lets through."""


def verdict_on(verdict: str, *, stands_in: bool, is_of_target: bool, arch: str) -> str:
    """Say a verdict with what ran the artifact, where that is not what it is meant for.

    Args:
        verdict: Verdict of an engine.
        stands_in: whether another unit ran it than the one it is meant for.
        is_of_target: whether this machine is of the target's kind.
        arch: Architecture of this machine.
    """
    if verdict == "not run":
        return verdict
    if stands_in:
        return f"numbers {verdict}"
    return verdict if is_of_target else f"{verdict} on {arch}"


_MANY_ROWS = 8
"""Decided rows from which a share of them says something."""

_DECIDED = 0.1
"""Share of a row's largest magnitude by which the winner must lead for the row to count in top-1;
the order of near ties is not a promise of any engine."""


@dataclass(frozen=True, slots=True)
class OutputMetrics:
    """Distance between an actual and an expected output.

    Attributes:
        count: elements compared.
        max_abs: largest absolute difference of the finite elements.
        max_rel: ``max_abs`` over the largest finite magnitude expected.
        sqnr_db: signal to error power in dB; infinite when equal.
        channel_sqnr_db: the same, of the worst slice along any axis, so that a small-valued
            channel (scores next to pixel coordinates) is not hidden by a large one.
        channel_max_abs: largest absolute difference within that slice.
        cosine: Cosine of the two flattened outputs; 1.0 when both are zero.
        top1: share of decided rows with the same winner; None unless it looks like a classifier.
        top1_rows: decided rows, the weight of ``top1``.
        mismatches: elements that differ, of integer, boolean and string outputs.
        nonfinite: elements that are NaN or infinite in one and not, or differently, in the other.
        problem: why the two cannot be compared (shape, element type); empty when they can.
    """

    count: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    sqnr_db: float = math.inf
    channel_sqnr_db: float = math.inf
    channel_max_abs: float = 0.0
    cosine: float = 1.0
    top1: float | None = None
    top1_rows: int = 0
    mismatches: int = 0
    nonfinite: int = 0
    problem: str = ""

    def without_distance(self) -> OutputMetrics:
        """Return what counts where only that an output is a number does."""
        return OutputMetrics(self.count, nonfinite=self.nonfinite, problem=self.problem)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; JSON has no infinity, so it becomes None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class Budget:
    """What an output may lose.

    Attributes:
        max_abs: an output whose every element is this close passes, where its largest value over
            all vectors is one or more; a channel within twenty times that. Of smaller outputs it is
            a share of their largest value (``among``).
        max_rel: largest ``OutputMetrics.max_rel``.
        sqnr_db: smallest ``OutputMetrics.sqnr_db``.
        channel_sqnr_db: smallest ``OutputMetrics.channel_sqnr_db``.
        cosine: smallest ``OutputMetrics.cosine``.
        top1: smallest ``OutputMetrics.top1``.
        mismatch: largest share of integer, boolean and string elements that differ.
        pooled: what is left of the signal is asked of all vectors together: a vector on which an
            output is small by chance, as a score in silence, has little signal to be held against.
        spread_db: smallest ratio of what a channel varies by, over all vectors, to its error.
    """

    max_abs: float
    max_rel: float
    sqnr_db: float
    channel_sqnr_db: float
    cosine: float
    top1: float = 1.0
    mismatch: float = 0.0
    pooled: bool = False
    spread_db: float = -math.inf

    def among(self, arrays: Iterable[Array]) -> Budget:
        """Return the budget of one vector's output, given that output of all vectors.

        What may be off whatever its scale is a rounding of the largest value that the output has:
        one that never is larger than 1e-4 is not right because it is 5e-3 off. Where nothing but
        zeros is expected there is no scale, and the budget stays as it is.
        """
        found = [_as_float64(a) for a in _plain(arrays)]
        ends = (np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in found)
        largest = float(max(ends, default=0.0))
        floor = self.max_abs * min(1.0, largest or 1.0)
        if self.pooled:
            squares = [float(np.mean(np.square(a))) for a in found]
            usual = math.sqrt(sum(squares) / len(squares)) if squares else 0.0
            if math.isfinite(usual):
                floor = max(floor, usual * 10.0 ** (-self.sqnr_db / 20.0))
        return replace(self, max_abs=floor)

    @property
    def channel_floor(self) -> float:
        """Errors up to this leave a channel out: it has fewer elements to average over."""
        return 20.0 * self.max_abs

    def widened(self, spread: OutputMetrics, slack: float = SLACK) -> Budget:
        """Return a budget for a result that plain rounding moves by ``spread``.

        ``spread`` is the distance between two valid evaluations. An engine sums in another order
        than either, so it may be ``slack`` times as far off; where rounding hardly moves the
        result the budget stays as it is.
        """
        return Budget(
            max_abs=max(self.max_abs, slack * spread.max_abs),
            max_rel=max(self.max_rel, slack * spread.max_rel),
            sqnr_db=min(self.sqnr_db, spread.sqnr_db - 20.0 * math.log10(slack)),
            channel_sqnr_db=min(
                self.channel_sqnr_db, spread.channel_sqnr_db - 20.0 * math.log10(slack)
            ),
            cosine=min(self.cosine, 1.0 - slack**2 * (1.0 - spread.cosine)),
            top1=self.top1,
            mismatch=max(self.mismatch, spread.mismatches / max(1, spread.count)),
            pooled=self.pooled,
            spread_db=self.spread_db,
        )

    def refuses_nothing(self, spread: OutputMetrics) -> bool:
        """Whether it would let anything pass once it is widened.

        Two evaluations that part by a tenth of an output's energy, or by a third of its largest
        value, do not say what is right: thirty times as much is any answer at all.
        """
        return spread.sqnr_db < _NOTHING_DB or SLACK * spread.max_rel > _NOTHING_REL

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)


_NOTHING_DB, _NOTHING_REL = 20.0, 10.0
"""Distance of two evaluations, and share of the largest value after widening, from which a budget
refuses nothing."""


BUDGETS: dict[str, Budget] = {
    # Engines sum doubles in doubles: 300 dB and more.
    "fp64": Budget(1e-12, 1e-9, 180.0, 120.0, 0.999999999, spread_db=20.0),
    # Measured on 40 real models, three engines against each other: at least 88 dB, at most 3e-5 of
    # the largest value; once 5e-4 on a text detector's map. A saturated sigmoid moves by 1.5e-7
    # around 2e-5, which only the absolute floor can excuse. Tanh for erf in every Gelu stays
    # below 70 dB, other weights below 20 dB.
    "fp32": Budget(2e-6, 2e-3, 70.0, 45.0, 0.999999, spread_db=20.0),
    # Measured on 25 real models, ordinary inputs, with fp16 weights alone (OpenVINO) as with fp16
    # arithmetic between islands (ONNX Runtime): at least 34 dB, cosine 0.9998, at most 0.08 of the
    # largest value, at the steep edge of a text detector's map. The floor is one rounding of an
    # activation near one.
    "fp16": Budget(5e-4, 1.2e-1, 30.0, 6.0, 0.9995, 1.0, 0.01, spread_db=3.0),
    # Operands of products are rounded as in fp16, sums and ranges are those of fp32.
    "tf32": Budget(5e-4, 1.2e-1, 30.0, 6.0, 0.9995, 1.0, 0.01, spread_db=3.0),
    # One rounding is 2^-8: 18 dB worse than fp16.
    "bf16": Budget(4e-3, 4e-1, 13.0, 0.0, 0.975, 1.0, 0.02),
    # Eight bits of range per tensor. Nets that kept the quality of their task on held-out samples
    # gave at least 15.5 dB and at most 0.16 of the largest value (benchmarks.budgets): the
    # bounds leave 3.5 dB, and 2.5 times the error. A task metric is the finer judge.
    # A channel of which nothing is left has 0 dB: scores that share a scale with pixel coordinates.
    "static_wi8_ai8": Budget(5e-3, 4.1e-1, 12.0, 3.0, 0.97, 0.9, 0.05, spread_db=3.0),
    # Only the weights lose bits that count: 24.7 dB, 0.039 and better where the task was kept.
    "static_wi8_ai16": Budget(2e-3, 2.5e-1, 20.0, 3.0, 0.99, 0.95, 0.02, spread_db=3.0),
    # Activations get a scale per run, so no clipping: 19.3 dB, 0.084.
    "dynamic_wi8_afp32": Budget(3e-3, 3e-1, 15.0, -math.inf, 0.98, 0.9, 0.05),
    # One scale a channel, not chosen by data: 19.3 dB, 0.083.
    "weight_only_wi8_afp32": Budget(2e-3, 2.5e-1, 17.0, 3.0, 0.99, 0.95, 0.02, spread_db=3.0),
    # Four bits with a scale per 32 weights: 17.8 dB, 0.12 where the task was kept.
    "weight_only_wi4b32_afp32": Budget(5e-3, 5e-1, 12.0, -math.inf, 0.97, 0.9, 0.05),
    # E4M3 keeps three mantissa bits: 6 % a value, averaged out by the sums.
    "fp8": Budget(5e-3, 5e-1, 12.0, -math.inf, 0.97, 0.9, 0.05),
    # A search held a measure of the task on real data, and answers may differ where the task does
    # not ask: a text reader may see a letter one step later. What is left to say is noise or not.
    "by_task": Budget(5e-3, 2.0, 3.0, -math.inf, 0.7, 0.0, 1.0, pooled=True),
}
"""By precision name; what a number passes in one table is what it passes on the device."""


_PACKED = r"(?:weight_only|static)_w(s?)(?:p([1-8])(?:g[0-9]+)?)?(?:i8)?_a[fi][a-z0-9]+"
"""Weights in palettes or without their zeros, as ``convert.quantize.recipe`` names them."""


_LANGUAGE_MODELS = ("w4", "w5", "w6", "w8")
"""Bits of weights, with activations in 8. What may be lost of a text's distribution is judged when
the bundle is made; this only tells noise from answers."""


def _of(precision: str) -> Budget | None:
    if precision in BUDGETS:
        return BUDGETS[precision]
    if precision in _LANGUAGE_MODELS:
        return BUDGETS["weight_only_wi4b32_afp32"]
    if precision.endswith("_afp16"):
        plain = _of(precision.removesuffix("_afp16") + "_afp32")
        return None if plain is None else _looser(plain, BUDGETS["fp16"])
    packed = re.fullmatch(_PACKED, precision)
    if packed is None:
        return None
    # Six bits of a palette are as near as eight with a scale; zeros lose what four bits lose.
    few = bool(packed[1]) or int(packed[2] or 8) < 6
    return BUDGETS["weight_only_wi4b32_afp32" if few else "weight_only_wi8_afp32"]


def budget_for(precision: str) -> Budget:
    """Return the default budget of a precision.

    A mixture, as read back from an artifact (``fp16+fp32``), may lose what its coarsest part may.

    Raises:
        UsageError: no budget has this name.
    """
    found = {p: _of(p) for p in precision.split("+")}
    if unknown := [p for p, budget in found.items() if budget is None]:
        raise UsageError(
            f"no accuracy budget for precision {unknown[0]!r}; known: {', '.join(BUDGETS)}"
        )
    return functools.reduce(_looser, (b for b in found.values() if b is not None))


def compare(expected: Array, actual: Array, *, channel_floor: float = 0.0) -> OutputMetrics:
    """Measure; never raises: a shape or element type that differs is a ``problem``.

    Sequences of tensors, which some models give, are compared one by one.

    Args:
        expected: what is right; of a part only that part is compared.
        actual: what came out.
        channel_floor: a channel with no larger error is not the worst one, whatever its ratio.
    """
    if isinstance(expected, list) or isinstance(actual, list):
        return _compare_lists(expected, actual, channel_floor)
    wanted, actual = whole_shape(expected), np.asarray(actual)
    if wanted != actual.shape:
        problem = f"shape {list(actual.shape)} instead of {list(wanted)}"
        return OutputMetrics(np.size(expected), problem=problem)
    expected, actual = np.asarray(expected), alike(expected, actual)
    if _type_name(expected) != _type_name(actual):
        problem = f"element type {_type_name(actual)} instead of {_type_name(expected)}"
        return OutputMetrics(expected.size, problem=problem)
    if expected.size == 0:
        return OutputMetrics()
    if _is_float(expected):
        return _compare_floats(_as_float64(expected), _as_float64(actual), channel_floor)
    return _compare_exactly(expected, actual)


def check(metrics: OutputMetrics, budget: Budget) -> list[str]:
    """List what leaves the budget, one line each; empty when all is well."""
    if metrics.problem:
        return [metrics.problem]
    breaches = []
    if metrics.nonfinite:
        breaches.append(
            f"{metrics.nonfinite} of {metrics.count} elements differ in NaN or infinity"
        )
    if metrics.mismatches > budget.mismatch * metrics.count:
        allowed = int(budget.mismatch * metrics.count)
        breaches.append(
            f"{metrics.mismatches} of {metrics.count} elements differ, allowed {allowed}"
        )
    if metrics.mismatches == 0 and metrics.max_abs > budget.max_abs:
        breaches += _float_breaches(metrics, budget)
    return breaches


def counted(metrics: Sequence[OutputMetrics], floor: float) -> Sequence[OutputMetrics]:
    """Leave out what is below the floor, whose ratios say nothing, where anything is above it."""
    return [m for m in metrics if m.max_abs > floor] or metrics


def worst(metrics: Sequence[OutputMetrics]) -> OutputMetrics:
    """Combine the measurements of one output over several vectors."""
    if not metrics:
        return OutputMetrics()
    rows = sum(m.top1_rows for m in metrics)
    hits = sum((m.top1 or 0.0) * m.top1_rows for m in metrics)
    channel = min(metrics, key=lambda m: m.channel_sqnr_db)
    return OutputMetrics(
        count=sum(m.count for m in metrics),
        max_abs=max(m.max_abs for m in metrics),
        max_rel=max(m.max_rel for m in metrics),
        sqnr_db=min(m.sqnr_db for m in metrics),
        channel_sqnr_db=channel.channel_sqnr_db,
        channel_max_abs=channel.channel_max_abs,
        cosine=min(m.cosine for m in metrics),
        top1=hits / rows if rows else None,
        top1_rows=rows,
        mismatches=sum(m.mismatches for m in metrics),
        nonfinite=sum(m.nonfinite for m in metrics),
        problem=next((m.problem for m in metrics if m.problem), ""),
    )


def _looser(a: Budget, b: Budget) -> Budget:
    return Budget(
        max_abs=max(a.max_abs, b.max_abs),
        max_rel=max(a.max_rel, b.max_rel),
        sqnr_db=min(a.sqnr_db, b.sqnr_db),
        channel_sqnr_db=min(a.channel_sqnr_db, b.channel_sqnr_db),
        cosine=min(a.cosine, b.cosine),
        top1=min(a.top1, b.top1),
        mismatch=max(a.mismatch, b.mismatch),
        pooled=a.pooled or b.pooled,
        spread_db=min(a.spread_db, b.spread_db),
    )


def _float_breaches(metrics: OutputMetrics, budget: Budget) -> list[str]:
    breaches = []
    if not metrics.max_rel <= budget.max_rel:
        breaches.append(
            f"largest error {metrics.max_abs:.3g} is {metrics.max_rel:.3g} of the largest value, "
            f"allowed {budget.max_rel:.3g}"
        )
    if not metrics.sqnr_db >= budget.sqnr_db:
        breaches.append(
            f"signal to error {metrics.sqnr_db:.1f} dB, at least {budget.sqnr_db:.1f} dB required"
        )
    if metrics.channel_max_abs > budget.channel_floor and not (
        metrics.channel_sqnr_db >= budget.channel_sqnr_db
    ):
        breaches.append(
            f"signal to error of the worst channel {metrics.channel_sqnr_db:.1f} dB, "
            f"at least {budget.channel_sqnr_db:.1f} dB required"
        )
    if not metrics.cosine >= budget.cosine:
        breaches.append(f"cosine {metrics.cosine:.7f}, at least {budget.cosine:.7f} required")
    if budget.top1 == 1.0 or metrics.top1_rows >= _MANY_ROWS:
        breaches += winners_lost([metrics], budget)
    return breaches


def winners_lost(metrics: Sequence[OutputMetrics], budget: Budget) -> list[str]:
    """Say whether fewer rows than required kept their winner, over all vectors together.

    A share is one of many rows: of few, as in runs of one image each, one may go another way.
    """
    rows = sum(m.top1_rows for m in metrics)
    kept = round(sum((m.top1 or 0.0) * m.top1_rows for m in metrics))
    asked = math.ceil(budget.top1 * rows)
    if budget.top1 < 1.0 and rows >= _MANY_ROWS:
        asked = min(asked, rows - 1)
    if kept >= asked:
        return []
    return [
        f"same winner in {kept} of {rows} decided row{'s' if rows != 1 else ''}, "
        f"at least {asked} required"
    ]


def _type_name(array: Array) -> str:
    return "string" if array.dtype.kind in "OSUT" else array.dtype.name


def _is_plain(array: Any) -> bool:
    """Whether it is one tensor of floats, with something in it."""
    return not isinstance(array, list) and array.size > 0 and _is_float(array)


def _plain(arrays: Iterable[Any]) -> Iterator[Array]:
    """Go through tensors of floats, those of sequences too."""
    for array in arrays:
        if isinstance(array, list):
            yield from _plain(array)
        elif _is_plain(array):
            yield array


def _is_float(array: Array) -> bool:
    # ml_dtypes' bfloat16 and float8 have kind "V"; only their names tell.
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))


def _as_float64(array: Array) -> npt.NDArray[np.float64]:
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.float64)


def _compare_lists(expected: Any, actual: Any, floor: float) -> OutputMetrics:
    lengths = [len(x) if isinstance(x, list) else None for x in (expected, actual)]
    if lengths[0] != lengths[1]:
        named = ["a tensor" if n is None else f"a sequence of {n}" for n in lengths]
        return OutputMetrics(problem=f"{named[1]} instead of {named[0]}")
    pairs = zip(expected, actual, strict=True)
    return worst([compare(e, a, channel_floor=floor) for e, a in pairs])


def _compare_exactly(expected: Array, actual: Array) -> OutputMetrics:
    if _type_name(expected) == "string":
        differ = expected.astype(str) != actual.astype(str)
        return OutputMetrics(expected.size, mismatches=int(np.count_nonzero(differ)))
    mismatches = int(np.count_nonzero(expected != actual))
    if not mismatches:
        return OutputMetrics(expected.size)
    error = np.abs(expected.astype(np.float64) - actual.astype(np.float64))
    scale = float(np.abs(expected.astype(np.float64)).max())
    return OutputMetrics(
        expected.size,
        max_abs=float(error.max()),
        max_rel=_ratio(float(error.max()), scale),
        mismatches=mismatches,
    )


def _compare_floats(
    expected: npt.NDArray[np.float64], actual: npt.NDArray[np.float64], channel_floor: float
) -> OutputMetrics:
    finite = np.isfinite(expected) & np.isfinite(actual)
    same = finite | (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    top1, rows = _top1(expected, actual)
    expected, actual = np.where(finite, expected, 0.0), np.where(finite, actual, 0.0)
    scale = float(np.abs(expected).max())
    error = actual - expected
    max_abs = float(np.abs(error).max())
    # Squares are taken of values near one, so that neither 1e-200 nor 1e200 leaves the range.
    unit = max(scale, max_abs) or 1.0
    channel_sqnr, channel_max = _worst_channel(expected / unit, error / unit, channel_floor / unit)
    return OutputMetrics(
        count=expected.size,
        max_abs=max_abs,
        max_rel=_ratio(max_abs, scale),
        sqnr_db=_decibel(float(np.sum((expected / unit) ** 2)), float(np.sum((error / unit) ** 2))),
        channel_sqnr_db=channel_sqnr,
        channel_max_abs=channel_max * unit,
        cosine=_cosine(expected / unit, actual / unit),
        top1=top1,
        top1_rows=rows,
        nonfinite=int(np.count_nonzero(~same)),
    )


def _ratio(error: float, scale: float) -> float:
    if error == 0.0:
        return 0.0
    return error / scale if scale > 0.0 else math.inf


def _decibel(signal: float, error: float) -> float:
    if error == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / error) if signal > 0.0 else -math.inf


def _cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if norms == 0.0:
        return 1.0 if not (a.any() or b.any()) else 0.0
    return min(1.0, float(np.vdot(a, b)) / norms)


def _worst_channel(
    expected: npt.NDArray[np.float64], error: npt.NDArray[np.float64], floor: float
) -> tuple[float, float]:
    """Return the lowest signal to error ratio of all slices, and that slice's largest error."""
    low, largest = math.inf, 0.0
    for axis in range(expected.ndim):
        length = expected.shape[axis]
        if length < 2 or expected.size // length < _MIN_SLICE:
            continue
        others = tuple(i for i in range(expected.ndim) if i != axis)
        signal = np.sum(expected**2, axis=others)
        noise = np.sum(error**2, axis=others)
        peak = np.abs(error).max(axis=others)
        # A silent channel has no ratio; its error is judged with the whole output's.
        heard = (signal > 0.0) & (noise > 0.0) & (peak > floor)
        if heard.any():
            ratio = np.full(length, np.inf)
            ratio[heard] = 10.0 * np.log10(signal[heard] / noise[heard])
            index = int(ratio.argmin())
            if ratio[index] < low:
                low, largest = float(ratio[index]), float(peak[index])
    return low, largest


def _top1(
    expected: npt.NDArray[np.float64], actual: npt.NDArray[np.float64]
) -> tuple[float | None, int]:
    while expected.ndim > 2 and expected.shape[-1] == 1:
        expected, actual = expected[..., 0], actual[..., 0]
    if expected.ndim != 2 or expected.shape[-1] < 2 or not np.isfinite(expected).all():
        return None, 0
    ranked = np.sort(expected, axis=-1)
    decided = ranked[:, -1] - ranked[:, -2] > _DECIDED * np.abs(expected).max(axis=-1)
    rows = int(np.count_nonzero(decided))
    if not rows:
        return None, 0
    hits = expected.argmax(axis=-1)[decided] == actual.argmax(axis=-1)[decided]
    return float(np.mean(hits)), rows
