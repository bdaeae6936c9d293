"""Measures of a task, by name: outputs and labels to one number, the higher the better.

The first output is judged. Labels are one for each sample: a class number, a text, or an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import UsageError
from edgeinfer.types import Array

Outputs = Mapping[str, Array]

Metric = Callable[[Sequence[Outputs], Sequence[Any]], float]
"""A user's own measure: outputs of all runs and labels of all samples in; higher is better."""

LABELLED = "an array 'labels' with one for each sample, or a folder for each class"
"""What labels are in data."""

_OVERLAP = 0.5
"""Intersection over union from which a box is found."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Named:
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
        """Return the measure, the higher the better.

        Raises:
            UsageError: the labels or outputs are none that it can judge.
        """
        if not labels:
            raise UsageError(f"metric {self.name!r} needs labels: {LABELLED}")
        found = [np.asarray(next(iter(o.values()))) for o in outputs]
        return float(_MEASURES[self.name](self.name, found, labels, self.classes))

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


def _rows(name: str, outputs: list[Array], labels: Sequence[Any]) -> Floats:
    """Return the outputs as one row for each label."""
    if any(o.ndim == 0 for o in outputs):
        raise _refused(name, "a row for each sample", "a single number")
    rows = np.concatenate([o.reshape(-1, o.shape[-1]) for o in outputs]).astype(np.float64)
    if len(rows) != len(labels):
        raise _refused(name, "as many labels as rows", f"{len(labels)} labels, {len(rows)} rows")
    return rows


def _classes(name: str, labels: Sequence[Any], classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the number of each class; those that go by their names are known by these."""
    places = {kind: place for place, kind in enumerate(classes)}
    numbers = [places.get(x, x) if isinstance(x, str) else x for x in labels]
    for number in numbers:
        if not isinstance(number, int):
            named = f"class numbers, or names among the model's {len(places)} labels"
            raise _refused(name, named, f"labels such as {number!r}")
    return np.asarray(numbers, np.int64)


def _top(name: str, outputs: list[Array], labels: Sequence[Any], kinds: Sequence[str]) -> float:
    wanted = _classes(name, labels, kinds)
    rows = _rows(name, outputs, labels)
    best = np.argsort(-rows, axis=1, kind="stable")[:, : int(name[3:])]
    return float(np.mean((best == wanted[:, None]).any(axis=1)))


def _f1(name: str, outputs: list[Array], labels: Sequence[Any], kinds: Sequence[str]) -> float:
    """F1 of class 1 where there are two, the mean over classes where there are more."""
    wanted = _classes(name, labels, kinds)
    rows = _rows(name, outputs, labels)
    single = rows.shape[1] == 1
    found = (rows[:, 0] > 0.5).astype(np.int64) if single else rows.argmax(axis=1)
    count = 2 if single else rows.shape[1]
    judged = [1] if count == 2 else sorted({*wanted.tolist(), *found.tolist()})
    scores = []
    for kind in judged:
        right = float(np.sum((found == kind) & (wanted == kind)))
        both = float(np.sum(found == kind) + np.sum(wanted == kind))
        scores.append(2.0 * right / both if both else 1.0)
    return float(np.mean(scores))


def _cosine(name: str, outputs: list[Array], labels: Sequence[Any], _: Sequence[str]) -> float:
    """Share of the samples whose nearest other one has the same label."""
    rows = _rows(name, outputs, labels)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(lengths > 0, lengths, 1.0)
    near = units @ units.T
    np.fill_diagonal(near, -np.inf)
    # A NaN would win every argmax.
    nearest = np.where(np.isnan(near), -np.inf, near).argmax(axis=1)
    return float(np.mean([labels[i] == labels[j] for i, j in enumerate(nearest)]))


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
    readings = [r for o in outputs for r in _read(name, o)]
    if len(readings) != len(labels):
        raise _refused(
            name, "as many labels as readings", f"{len(labels)} labels, {len(readings)} readings"
        )
    edits = total = 0
    for ids, label in zip(readings, labels, strict=True):
        spelled, wanted = _spelled(name, ids, label, classes)
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
    text = "".join(classes[i] if i < len(classes) else "\0" for i in ids)
    return (text.split(), label.split()) if name == "wer" else (text, label)


def _distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the fewest insertions, deletions and replacements that turn one into the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


def _map(name: str, outputs: list[Array], labels: Sequence[Any], _: Sequence[str]) -> float:
    """Mean over classes of the average precision, boxes found from half an overlap on.

    Labels have a row for each box: class, left, top, right, bottom; a class below zero fills up.
    """
    if len(outputs) != len(labels):
        raise _refused(name, "one label array for each run", f"{len(labels)}, {len(outputs)} runs")
    wanted = [np.asarray(x, np.float64).reshape(-1, 5) for x in labels]
    wanted = [w[w[:, 0] >= 0] for w in wanted]
    found = [_boxes(name, o) for o in outputs]
    kinds = sorted({int(c) for w in wanted for c in w[:, 0]})
    if not kinds:
        raise _refused(name, "a box in the labels", "none")
    return float(np.mean([_average_precision(kind, found, wanted) for kind in kinds]))


def _boxes(name: str, output: Array) -> Floats:
    """Return rows of left, top, right, bottom, score, class.

    Known are rows of just that, and YOLO's ``[1, 4 + classes, places]`` with centres and sizes.
    """
    array = np.nan_to_num(np.asarray(output, np.float64), nan=-1.0)
    array = array[0] if array.ndim == 3 and array.shape[0] == 1 else array
    if array.ndim == 2 and array.shape[1] == 6:
        return array[array[:, 4] > 0]
    if array.ndim != 2 or array.shape[0] < 5:
        raise _refused(name, "[boxes, 6] or [1, 4 + classes, places]", str(list(output.shape)))
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


def _average_precision(kind: int, found: list[Floats], wanted: list[Floats]) -> float:
    total = sum(int(np.sum(w[:, 0] == kind)) for w in wanted)
    guesses = sorted(
        ((float(r[4]), i, r[:4]) for i, rows in enumerate(found) for r in rows if r[5] == kind),
        key=lambda guess: -guess[0],
    )
    free = [w[w[:, 0] == kind][:, 1:] for w in wanted]
    hits = []
    for _, image, box in guesses:
        overlaps = _overlaps(box, free[image])
        hit = overlaps.size > 0 and overlaps.max() >= _OVERLAP
        if hit:
            free[image] = np.delete(free[image], overlaps.argmax(), axis=0)
        hits.append(hit)
    right = np.cumsum(hits)
    precision = right / np.arange(1, len(hits) + 1) if hits else np.zeros(0)
    # The best precision at this recall or beyond: the curve never rises to the right.
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(best * np.asarray(hits)) / total)


_Measure = Callable[[str, list[Array], Sequence[Any], Sequence[str]], float]

_MEASURES: dict[str, _Measure] = {
    **{"top1": _top, "top5": _top, "f1": _f1, "map": _map, "cer": _text_errors},
    **{"wer": _text_errors, "cosine": _cosine, "rmse": _rmse},
}

NAMES = tuple(_MEASURES)
"""Measures by name."""
