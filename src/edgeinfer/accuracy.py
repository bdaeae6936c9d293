"""Measures of a task, by name: outputs and labels to one number, the higher the better.

One output is judged: the first that holds numbers with a fraction, since classifiers of
scikit-learn give the class that they predict before its scores; of a model without such, the first.
Labels are one for each sample: a class number, a text, or an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

Outputs = Mapping[str, Array]

Metric = Callable[[Sequence[Outputs], Sequence[Any]], float]
"""A user's own measure: outputs of all runs and labels of all samples in; higher is better."""

LABELLED = "an array 'labels' with one for each sample, or a folder for each class"
"""What labels are in data."""

_OVERLAP = 0.5
"""Intersection over union from which a box is found."""

_MOST_STEPS = 1 << 37
"""Multiplications that a measure may take, or what is worth one: seconds of a processor.

What is compared with each other grows with its square, and data of a few bytes hold millions.
"""
_PER_PAIR = 32
"""Multiplications that the rest of the work on a pair of rows is worth."""
_PER_OVERLAP = 1 << 11
"""The same of a pair of boxes."""
_BLOCK = 1 << 22
"""Similarities that are in memory at once."""
_PER_LETTERS = 4
"""The same of a pair of characters or words."""
_BITS = 1 << 13
"""Rows of a table of distances in one number: what is different is this often as long in memory."""
_MOST_TEXT = 1 << 26
"""Characters that all readings together may spell; names of classes are as long as they like."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TaskMeasure:
    """A measure of a task.

    Attributes:
        name: one of ``NAMES``.
        classes: names of classes, which labels may go by; ``cer`` and ``wer`` spell texts with
            them, the first is the blank.
    """

    name: str
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is unknown.

        Raises:
            UsageError: no measure has this name.
        """
        if self.name not in _MEASURES:
            raise UsageError(f"metric {self.name!r} is unknown; known: {', '.join(NAMES)}")

    def __call__(self, outputs: Sequence[Outputs], labels: Sequence[Any]) -> float:
        """Return the measure, the higher the better; an answer with NaN is wrong.

        Raises:
            UsageError: the labels or outputs are none that it can judge.
        """
        if not labels:
            raise UsageError(f"metric {self.name!r} needs labels: {LABELLED}")
        found = [np.asarray(o[self.judged(o)]) for o in outputs]
        try:
            return float(_MEASURES[self.name](self.name, found, labels, self.classes))
        except (ValueError, TypeError, OverflowError, LookupError) as error:
            first = found[0]
            received = f"{first.dtype.name} {first.shape} and labels such as {labels[0]!r:.60}"
            raise _refused(self.name, "outputs and labels of its kind", received) from error

    def judged(self, outputs: Mapping[str, Any]) -> str:
        """Return the name of the output that is judged.

        Args:
            outputs: arrays, or names of element types, in the model's order.
        """
        if _MEASURES[self.name] is not _text_errors:
            for name, value in outputs.items():
                kind = value if isinstance(value, str) else np.asarray(value).dtype.name
                if "float" in kind:
                    return name
        return next(iter(outputs))

    def shortened(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """Return outputs that are judged the same: of a text's scores over time what they read."""
        found = list(outputs)
        if _MEASURES[self.name] is not _text_errors:
            return found
        for index, output in enumerate(outputs):
            key, scores = next((n, np.asarray(a)) for n, a in output.items())
            if scores.dtype.kind == "f" and scores.ndim == 3 and len(scores) == 1:
                found[index] = {key: np.asarray(_read(self.name, scores), np.int64)}
        return found


def _refused(name: str, expected: str, received: str) -> UsageError:
    return UsageError(f"metric {name!r}: expected {expected}, received {received}")


class _Budget:
    """What work a measure may still do."""

    def __init__(self, name: str) -> None:
        self._name, self._spent = name, 0

    def spend(self, steps: int) -> None:
        """Refuse what is too much.

        Raises:
            UsageError: it is more than a measure may take.
        """
        self._spent += steps
        if self._spent > _MOST_STEPS:
            expected = "samples that are compared with each other in seconds"
            raise _refused(self._name, expected, "too many or too large ones; give fewer")


def _rows(name: str, outputs: list[Array], labels: Sequence[Any]) -> Floats:
    """Return the outputs as one row for each label."""
    if any(o.ndim == 0 for o in outputs):
        raise _refused(name, "a row for each sample", "a single number")
    rows = np.concatenate([o.reshape(-1, o.shape[-1]) for o in outputs]).astype(np.float64)
    if len(rows) != len(labels):
        raise _refused(name, "as many labels as rows", f"{len(labels)} labels, {len(rows)} rows")
    return rows


def _predicted(name: str, outputs: list[Array], labels: Sequence[Any]) -> Integers | None:
    """Return the class predicted for each sample, where the model gives it and no scores."""
    if any(o.dtype.kind not in "iu" or o.ndim > 1 for o in outputs):
        return None
    found = np.concatenate([o.reshape(-1) for o in outputs]).astype(np.int64)
    if len(found) != len(labels):
        raise _refused(name, "as many labels as classes", f"{len(labels)} and {len(found)}")
    return found


def _classes(name: str, labels: Sequence[Any], classes: Sequence[str]) -> Integers:
    """Return the number of each class; those that go by their names are known by these."""
    numbers_of = {kind: place for place, kind in enumerate(classes)}
    numbers = [numbers_of.get(x, x) if isinstance(x, str) else x for x in labels]
    for number in numbers:
        if not isinstance(number, int):
            named = f"class numbers, or names among the model's {len(numbers_of)} labels"
            raise _refused(name, named, f"labels such as {number!r}")
    return np.asarray(numbers, np.int64)


def _top(name: str, outputs: list[Array], labels: Sequence[Any], kinds: Sequence[str]) -> float:
    wanted = _classes(name, labels, kinds)
    if (predicted := _predicted(name, outputs, labels)) is not None:
        return float(np.mean(predicted == wanted))
    rows = _rows(name, outputs, labels)
    best = np.argsort(-rows, axis=1, kind="stable")[:, : int(name[3:])]
    # In an order of scores NaN has a place like any other, and may be the right one.
    return float(np.mean((best == wanted[:, None]).any(axis=1) & ~np.isnan(rows).any(axis=1)))


def _f1(name: str, outputs: list[Array], labels: Sequence[Any], kinds: Sequence[str]) -> float:
    """F1 of class 1 where there are two, the mean over classes where there are more."""
    wanted = _classes(name, labels, kinds)
    found = _predicted(name, outputs, labels)
    if found is not None:
        count = max(2, *(int(x) + 1 for x in (*found, *wanted)))
    else:
        rows = _rows(name, outputs, labels)
        single = rows.shape[1] == 1
        found = (rows[:, 0] > 0.5).astype(np.int64) if single else rows.argmax(axis=1)
        found[np.isnan(rows).any(axis=1)] = np.iinfo(np.int64).min
        count = 2 if single else rows.shape[1]
    # Labels may be any numbers: positions among those that occur stand for them.
    kinds_there, positions = np.unique(np.concatenate([[1], wanted, found]), return_inverse=True)
    wanted_at, found_at = positions[1 : 1 + len(wanted)], positions[1 + len(wanted) :]
    right, of_both = (
        np.bincount(at, minlength=len(kinds_there)).astype(np.float64)
        for at in (found_at[found_at == wanted_at], positions[1:])
    )
    scores = np.where(of_both > 0, 2.0 * right / np.maximum(of_both, 1.0), 1.0)
    if count == 2:
        return float(scores[positions[0]])
    return float(np.mean(scores[of_both > 0]))


def _cosine(name: str, outputs: list[Array], labels: Sequence[Any], _: Sequence[str]) -> float:
    """Share of the samples whose nearest other one has the same label."""
    rows = _rows(name, outputs, labels)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(lengths > 0, lengths, 1.0)
    count = len(units)
    _Budget(name).spend(count * count * (units.shape[1] + _PER_PAIR))
    step = max(1, _BLOCK // count)
    nearest: list[int] = []
    for start in range(0, count, step):
        near = units[start : start + step] @ units.T
        # A NaN would win every argmax.
        near[np.isnan(near)] = -np.inf
        own = np.arange(len(near))
        near[own, start + own] = -np.inf
        nearest += near.argmax(axis=1).tolist()
    lost = set(np.flatnonzero(np.isnan(rows).any(axis=1)).tolist())
    right = [labels[i] == labels[j] for i, j in enumerate(nearest) if i not in lost]
    return sum(map(bool, right)) / count


def _rmse(name: str, outputs: list[Array], labels: Sequence[Any], _: Sequence[str]) -> float:
    found = np.concatenate([o.ravel() for o in outputs]).astype(np.float64)
    wanted = np.concatenate([np.asarray(x, np.float64).ravel() for x in labels])
    if found.size != wanted.size:
        raise _refused(name, f"{found.size} numbers in the labels", str(wanted.size))
    error = float(np.sqrt(np.mean(np.square(found - wanted))))
    return -error if np.isfinite(error) else -np.inf


def _text_errors(
    name: str, outputs: list[Array], labels: Sequence[Any], classes: Sequence[str]
) -> float:
    """One less the edits that the readings need, for each character or word that is written."""
    if any(o.dtype.kind == "f" and np.isnan(o).any() for o in outputs):
        return -np.inf
    readings = [r for o in outputs for r in _read(name, o)]
    if len(readings) != len(labels):
        raise _refused(
            name, "as many labels as readings", f"{len(labels)} labels, {len(readings)} readings"
        )
    sizes = np.array([len(c) for c in classes] or [1])
    budget = _Budget(name)
    edits = total = spelt = 0
    for ids, label in zip(readings, labels, strict=True):
        known = np.asarray(ids, np.int64)
        spelt += len(ids) + int(sizes[known[(known >= 0) & (known < len(sizes))]].sum())
        if spelt > _MOST_TEXT:
            raise _refused(name, f"readings of at most {_MOST_TEXT} characters", "more")
        spelled, wanted = _spelled(name, ids, label, classes)
        budget.spend(len(spelled) * len(wanted) * _PER_LETTERS)
        edits += _distance(spelled, wanted)
        total += len(wanted)
    return 1.0 - edits / max(1, total)


def _read(name: str, output: Array) -> list[list[int]]:
    """Read rows of scores over time: repetitions once, class 0 is nothing."""
    if output.dtype.kind in "iu":
        # A text may be read as nothing: of no elements reshape finds no number of rows.
        rows = output.reshape(math.prod(output.shape[:-1]), output.shape[-1])
        return [row.tolist() for row in rows]
    if output.ndim not in (2, 3):
        raise _refused(name, "scores of shape [batch, time, classes]", str(list(output.shape)))
    best = output.reshape(-1, *output.shape[-2:]).argmax(axis=2)
    changed = np.concatenate([np.ones_like(best[:, :1], bool), best[:, 1:] != best[:, :-1]], axis=1)
    return [row[keep & (row != 0)].tolist() for row, keep in zip(best, changed, strict=True)]


def _spelled(
    name: str, ids: list[int], label: Any, classes: Sequence[str]
) -> tuple[Sequence[Any], Sequence[Any]]:
    if not isinstance(label, str):
        return ids, [x for x in np.asarray(label).ravel().tolist() if x >= 0]
    if not classes:
        raise _refused(name, "names of classes (labels) to spell texts with", "none")
    # What stands for a class that has no name cannot be in any text.
    text = "".join(classes[i] if 0 <= i < len(classes) else "\0" for i in ids)
    return (text.split(), label.split()) if name == "wer" else (text, label)


def _distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the fewest insertions, deletions and replacements that turn one into the other.

    The table of distances has a row for each element of ``b``. As many rows as a long integer has
    bits are gone through at once: its bits say where a column rises or falls from row to row.

    Source: Hyyrö 2003, A bit-vector algorithm for computing Levenshtein and Damerau edit distances.
    """
    # From column to column the row above all others rises.
    across = [1] * len(a)
    for start in range(0, len(b), _BITS):
        across = _rows_of(a, b[start : start + _BITS], across)
    return len(b) + sum(across)


def _rows_of(a: Sequence[Any], b: Sequence[Any], above: list[int]) -> list[int]:
    """Return how the last of some rows changes along the columns, as the one above them does."""
    equal: dict[Any, int] = {}
    for place, x in enumerate(b):
        equal[x] = equal.get(x, 0) | 1 << place
    every, last = (1 << len(b)) - 1, 1 << len(b) - 1
    rises, falls = every, 0
    below = []
    for x, into in zip(a, above, strict=True):
        same = equal.get(x, 0)
        down = same | falls
        same |= into < 0
        level = (((same & rises) + rises) ^ rises) | same
        more, less = falls | every & ~(level | rises), rises & level
        below.append(bool(more & last) - bool(less & last))
        more, less = more << 1 | (into > 0), less << 1 | (into < 0)
        rises, falls = (less | ~(down | more)) & every, more & down & every
    return below


def _map(name: str, outputs: list[Array], labels: Sequence[Any], _: Sequence[str]) -> float:
    """Mean over classes of the average precision, boxes found from half an overlap on.

    Labels have a row for each box: class, left, top, right, bottom; a class below zero fills up.
    """
    if len(outputs) != len(labels):
        raise _refused(name, "one label array for each run", f"{len(labels)}, {len(outputs)} runs")
    wanted = [np.asarray(x, np.float64).reshape(-1, 5) for x in labels]
    wanted = [w[w[:, 0] >= 0] for w in wanted]
    found = [_boxes(name, o) for o in outputs]
    boxes, positions = np.concatenate(wanted), _places(wanted)
    kinds, totals = np.unique(boxes[:, 0], return_counts=True)
    if not len(kinds):
        raise _refused(name, "a box in the labels", "none")
    if not np.array_equal(kinds, np.floor(kinds)) or not np.isfinite(kinds).all():
        raise _refused(name, "class numbers in the labels' first column", "others")
    guesses, guessed = np.concatenate(found), _places(found)
    order = np.lexsort((-guesses[:, 4], guesses[:, 5]))
    guesses, guessed = guesses[order], guessed[order]
    order = np.lexsort((positions, boxes[:, 0]))
    boxes, positions = boxes[order], positions[order]
    budget = _Budget(name)
    scores = []
    for kind, end, total in zip(kinds, np.cumsum(totals), totals, strict=True):
        own = slice(end - total, end)
        of_kind = slice(*np.searchsorted(guesses[:, 5], [kind, np.nextafter(kind, np.inf)]))
        free = _by_place(boxes[own, 1:], positions[own])
        hits = _hits(guesses[of_kind, :4], guessed[of_kind], free, budget)
        scores.append(_average_precision(hits, int(total)))
    return float(np.mean(scores))


def _places(parts: list[Floats]) -> Integers:
    """Return the run of each row of all parts together."""
    return np.repeat(np.arange(len(parts)), [len(p) for p in parts])


def _by_place(rows: Floats, images: Integers) -> dict[int, Floats]:
    """Return the rows of each run; they are sorted by it."""
    there, starts = np.unique(images, return_index=True)
    return dict(zip(there.tolist(), np.split(rows, starts[1:]), strict=True))


def _boxes(name: str, output: Array) -> Floats:
    """Return rows of left, top, right, bottom, score, class.

    Known are rows of just that, and YOLO's ``[1, 4 + classes, boxes]`` with centres and sizes.
    """
    array = np.nan_to_num(np.asarray(output, np.float64), nan=-1.0)
    array = array[0] if array.ndim == 3 and array.shape[0] == 1 else array
    if array.ndim == 2 and array.shape[1] == 6:
        return array[array[:, 4] > 0]
    if array.ndim != 2 or array.shape[0] < 5:
        raise _refused(name, "[boxes, 6] or [1, 4 + classes, boxes]", str(list(output.shape)))
    x, y, w, h = array[:4]
    kinds, best = array[4:].argmax(axis=0), array[4:].max(axis=0)
    rows = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, best, kinds], axis=1)
    return _distinct(rows[best > 0.05])


def _distinct(rows: Floats) -> Floats:
    """Leave out boxes that overlap a better one of their class by more than half."""
    left = rows[np.argsort(-rows[:, 4], kind="stable")][:300]
    kept = []
    while len(left):
        first, left = left[0], left[1:]
        kept.append(first)
        left = left[(left[:, 5] != first[5]) | (_overlaps(first[:4], left[:, :4]) < _OVERLAP)]
    return np.asarray(kept, np.float64).reshape(-1, 6)


def _overlaps(box: Floats, others: Floats) -> Floats:
    """Return intersection over union."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=1)
    sizes = np.prod(np.maximum(others[:, 2:] - others[:, :2], 0.0), axis=1)
    own = float(np.prod(np.maximum(box[2:] - box[:2], 0.0)))
    joined = sizes + own - shared
    return np.asarray(np.where(joined > 0, shared / np.where(joined > 0, joined, 1.0), 0.0))


def _hits(
    boxes: Floats, images: Integers, free: dict[int, Floats], budget: _Budget
) -> npt.NDArray[np.bool_]:
    """Return which boxes, the best first, find one in their run that none found before."""
    hits = np.zeros(len(boxes), bool)
    for index, (box, place) in enumerate(zip(boxes, images.tolist(), strict=True)):
        left = free.get(place)
        if left is None or not len(left):
            continue
        budget.spend(len(left) * _PER_OVERLAP)
        overlaps = _overlaps(box, left)
        if overlaps.max() >= _OVERLAP:
            hits[index] = True
            free[place] = np.delete(left, overlaps.argmax(), axis=0)
    return hits


def _average_precision(hits: npt.NDArray[np.bool_], total: int) -> float:
    right = np.cumsum(hits)
    precision = right / np.arange(1, len(hits) + 1)
    # The best precision at this recall or beyond: the curve never rises to the right.
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(best * hits) / total)


_Measure = Callable[[str, list[Array], Sequence[Any], Sequence[str]], float]

_MEASURES: dict[str, _Measure] = {
    **{"top1": _top, "top5": _top, "f1": _f1, "map": _map, "cer": _text_errors},
    **{"wer": _text_errors, "cosine": _cosine, "rmse": _rmse},
}

NAMES = tuple(_MEASURES)
"""Measures by name."""
