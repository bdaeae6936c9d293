"""Classifiers: Core ML names the class by itself and gives the scores as a dictionary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from edgeinfer.convert.lower.coreml.ports import Port
from edgeinfer.errors import UsageError

CLASSES = "edgeinfer.classes"
"""Metadata key: JSON with the names in the order of the model's output."""

LABEL = "classLabel"
SCORES = "classLabel_probs"
"""What coremltools calls the two outputs."""


def scored(outputs: Sequence[Port], labels: Sequence[str]) -> Port | None:
    """Return the output whose elements are the classes' scores; None without labels.

    Raises:
        UsageError: there is none, or a name is used twice or taken.
    """
    if not labels:
        return None
    twice = sorted({name for name in labels if labels.count(name) > 1})
    if twice:
        raise UsageError(f"classifier: the name {twice[0]!r} stands for several classes")
    found = next((p for p in outputs if _fits(p, len(labels))), None)
    if found is None:
        shapes = "; ".join(f"{p.source}: {list(p.dims)}" for p in outputs)
        raise UsageError(
            f"classifier: no output has {len(labels)} floats, one a label ({shapes}); the batch "
            "must be 1: fix it with --input-shape"
        )
    if taken := {LABEL, SCORES} & {p.name for p in outputs}:
        raise UsageError(f"classifier: the model has an output {taken.pop()!r} already")
    return found


def _fits(port: Port, count: int) -> bool:
    sizes = list(port.shape)
    return port.kind != "int32" and sizes[-1] == count and all(n == 1 for n in sizes[:-1])


def config(port: Port | None, labels: Sequence[str]) -> Any:
    """Return coremltools' description of a classifier."""
    if port is None:
        return None
    import coremltools as ct

    return ct.ClassifierConfig(
        list(labels), predicted_feature_name=LABEL, predicted_probabilities_output=port.name
    )


def metadata(port: Port | None, labels: Sequence[str]) -> dict[str, str]:
    """Return what the package records."""
    return {} if port is None else {CLASSES: json.dumps(list(labels), ensure_ascii=False)}
