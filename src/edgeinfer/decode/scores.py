"""Scores of classes to the best classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.heads import Activation, Classify
from edgeinfer.results import Classification
from edgeinfer.types import Array

LARGEST = 80.0
"""Raw scores beyond it do not change a float32 sigmoid, but overflow its exponential."""


def activated(scores: Array, activation: Activation, axis: int = -1) -> Array:
    """Apply what is still to be applied to raw scores; float32 out."""
    values = np.asarray(scores, np.float32)
    if activation == "sigmoid":
        return np.asarray(1.0 / (1.0 + np.exp(-values.clip(-LARGEST, LARGEST))), np.float32)
    if activation == "softmax":
        powers = np.exp(values - values.max(axis=axis, keepdims=True))
        return np.asarray(powers / powers.sum(axis=axis, keepdims=True), np.float32)
    return values


def classify(scores: Array, head: Classify, labels: Sequence[str]) -> list[Classification]:
    """Name the best classes, the best first; of equal ones the first.

    Args:
        scores: (classes,).
        head: how many, and what is applied.
        labels: names; may be empty.
    """
    values = activated(scores, head.activation)
    best = (-values).argsort(kind="stable")[: head.top]
    return [
        Classification(int(i), name_of(int(i), labels), float(values[i]))
        for i in best
        if values[i] >= head.threshold
    ]


def name_of(index: int, labels: Sequence[str]) -> str:
    """Name a class; its number where there is no label."""
    return labels[index] if 0 <= index < len(labels) else f"#{index}"
