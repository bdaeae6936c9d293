"""Where two graphs part that name their values alike, and what to ask of graphs at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.process import bounds
from edgeinfer.convert.passes.interface import input_specs
from edgeinfer.convert.sources import read
from edgeinfer.convert.verify.locate import all_values
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.vectors import make_vectors
from edgeinfer.metrics import Budget, check, compare
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds

READABLE = (".onnx", ".tflite")
"""Suffixes of artifacts that are graphs to the converter."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """What the values of two graphs say.

    Attributes:
        node: the first node, in the order of the second graph, that leaves the budget; empty where
            none does.
        op: its operator.
        breaches: what leaves it.
        compared: how many values both graphs have under one name.
    """

    node: str
    op: str
    breaches: tuple[str, ...]
    compared: int


def first_divergence(right: Path, other: Path, feeds: Feeds, budget: Budget) -> Divergence:
    """Compare all values of two models that both have under the same name.

    Args:
        right: the model that is taken to be right.
        other: the model that is judged.
        feeds: inputs, by their names or in their order.
        budget: Budget of each value.

    Raises:
        SourceError: a model cannot be read.
    """
    models = [read(path).model for path in (right, other)]
    bounds.looked()
    expected, actual = (all_values(model, _named(model, feeds)) for model in models)
    compared = 0
    for node in models[1].graph:
        for value in node.outputs:
            want, got = (values.get(str(value.name)) for values in (expected, actual))
            if not (isinstance(want, np.ndarray) and isinstance(got, np.ndarray)):
                continue
            compared += 1
            allowed = budget.among([want])
            found = compare(want, got, channel_floor=allowed.channel_floor)
            if breaches := check(found, allowed):
                return Divergence(
                    node.name or str(value.name), node.op_type, tuple(breaches), compared
                )
    return Divergence("", "", (), compared)


def _named(model: ir.Model, feeds: Feeds) -> Feeds:
    names = [spec.name for spec in input_specs(model)]
    if set(names) == feeds.keys():
        return feeds
    return dict(zip(names, feeds.values(), strict=False))


def made_inputs(path: Path) -> list[Feeds]:
    """Make inputs for a model as the gate does, but for extremes that few recipes survive.

    Raises:
        SourceError: it cannot be read or run.
        UsageError: no sizes were found that it runs with.
    """
    source = read(path)
    bounds.looked()
    with Oracles(source.model, original=source.original) as oracles:
        vectors = make_vectors(
            source.model, oracles.inputs, oracles=oracles, preprocessing=source.preprocessing
        )
    return [v.feeds for v in vectors if not v.edge]
