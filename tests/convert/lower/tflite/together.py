"""Many small models checked as one: what a conversion and an engine cost is paid once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx

Array = npt.NDArray[Any]
MOST = 150
"""Models that become one; larger graphs take longer in proportion."""


@dataclass(frozen=True)
class Row:
    """A model to be checked.

    Attributes:
        model: Model of which the nodes are taken.
        feeds: by input name, of each run.
        rtol: of the largest magnitude of an expected output.
        want: values to expect of the first run; None for what ONNX Runtime computes.
        precision: recipe.
        where: what is said of a value that is wrong.
    """

    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Array], ...]
    rtol: float
    want: Mapping[str, Array] | None
    precision: str
    where: str

    @property
    def kind(self) -> tuple[object, ...]:
        """Say with which rows it may be one model: what is open stays apart from what is fixed."""
        shapes = [v.type.tensor_type.shape.dim for v in self.model.graph.input]
        fixed = all(d.HasField("dim_value") for dims in shapes for d in dims)
        opsets = sorted((o.domain, o.version) for o in self.model.opset_import)
        return (self.precision, fixed, len(self.feeds), self.want is None, *opsets)


_waiting: list[list[Row]] = []


def collecting() -> list[Row] | None:
    """Return the rows that wait; None where each is checked at once."""
    return _waiting[-1] if _waiting else None


def joined(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Return one model of several; names and open sizes of each have its number before them."""
    whole = onnx.ModelProto()
    whole.CopyFrom(models[0])
    whole.graph.Clear()
    whole.graph.name = "rows"
    for number, model in enumerate(models):
        part = onnx.compose.add_prefix(model, prefix(number)).graph
        for node in part.node:
            _rename_in_bodies(node, {i.name for i in model.graph.initializer}, prefix(number))
        for value in (*part.input, *part.output, *part.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = prefix(number) + dim.dim_param
        for field in ("node", "initializer", "input", "output", "value_info"):
            getattr(whole.graph, field).extend(getattr(part, field))
    return whole


def _rename_in_bodies(node: onnx.NodeProto, names: set[str], start: str) -> None:
    """Rename what bodies read of a graph's constants, which onnx leaves as it was."""
    for attribute in node.attribute:
        for inner in attribute.g.node:
            for at, name in enumerate(inner.input):
                if name in names:
                    inner.input[at] = start + name
            _rename_in_bodies(inner, names, start)


def prefix(number: int) -> str:
    return f"row{number}_"


def joined_feeds(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return what such a model takes: what each of its models takes."""
    return {prefix(n) + name: x for n, part in enumerate(parts) for name, x in part.items()}


@contextmanager
def together() -> Iterator[None]:
    """Let ``check`` and ``agree`` only note what they would check, and check it at the end."""
    if _waiting:
        yield
        return
    from tests.convert.lower.tflite.run import check_rows

    rows: list[Row] = []
    _waiting.append(rows)
    try:
        yield
    finally:
        _waiting.clear()
    assert rows, "nothing was checked"
    kinds: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    for alike in kinds.values():
        for first in range(0, len(alike), MOST):
            check_rows(alike[first : first + MOST])


def rows(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[..., Any]:
    """Run a test for each of the values, as ``parametrize`` does, but with one conversion."""
    listed = tuple(n.strip() for n in names.split(",")) if isinstance(names, str) else names

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            with together():
                for value in values:
                    given = value if len(listed) > 1 else (value,)
                    test(*args, **kwargs, **dict(zip(listed, given, strict=True)))

        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in listed]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
