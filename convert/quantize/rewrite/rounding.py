"""Which weights are rounded with the data in mind, and which to the nearest."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer
from edgeinfer.convert.quantize.calibrate.moments import (
    HELD_OUT,
    Moments,
    WeightProduct,
    product_of,
    sum_up,
)
from edgeinfer.convert.quantize.calibrate.observe import open_session
from edgeinfer.convert.quantize.recipe import Recipe
from edgeinfer.convert.quantize.rewrite.gptq import Floats, product_error, round_weights
from edgeinfer.convert.quantize.rewrite.shared_weights import transposed_weights
from edgeinfer.convert.quantize.rewrite.weight_only import block_of, takes_integers
from edgeinfer.convert.quantize.rewrite.weights import store, store_blocks
from edgeinfer.convert.quantize.units import WEIGHTED, array_of, is_flat, lay_out
from edgeinfer.profiles.schema import Quantization
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

PAYS = 0.95
"""Share of the nearest rounding's error, on samples that were kept apart, below which a layer is
rounded with the data in mind; else it stays with the nearest, which needs no data to be right."""


MOST_WORK = 2e12
"""Multiplications that rounding may take, a minute or two of one core; the layers that are left are
rounded to the nearest. MobileNets and small transformers take a tenth of it."""

MOST_SAMPLES = 128
"""Of larger data sets so many samples are taken, spread over them."""

_NEAR_END = 0.1
"""Steps from the end of the integers within which a weight may be what its scale was chosen by."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Where rounded weights may lie.

    Attributes:
        block: inputs that share a scale, 4 bits each; 0 for 8 bits and one scale an output.
        positive: scales of blocks are positive bfloat16.
    """

    block: int = 0
    positive: bool = False

    def floats(self, matrix: Array) -> Array:
        """Round (outputs, inputs) to the nearest."""
        if self.block:
            return store_blocks(matrix.T, self.block, positive=self.positive).floats().T
        return store(matrix, 0).floats()

    def steps(self, matrix: Array) -> tuple[Array, Array]:
        """Return the scale of each weight of (outputs, inputs), and the nearest integers."""
        if not self.block:
            made = store(matrix, 0)
            return np.broadcast_to(made.wide_scale(), matrix.shape), made.values
        blocks = store_blocks(matrix.T, self.block, positive=self.positive)
        wide = np.repeat(blocks.scale, self.block, axis=0)[: blocks.rows].T
        return wide, blocks.values[: blocks.rows].T

    @property
    def ends(self) -> tuple[int, int]:
        """Smallest and largest integer."""
        return (-8, 7) if self.block else (-127, 127)


@dataclass(slots=True)
class Rounding:
    """Weights that were rounded with the data in mind.

    Attributes:
        weights: by name of the node with weights: floats that the nearest rounding leaves as they
            are, in the shape of the weights.
        tried: layers that were looked at.
        before: squared error of the products of those that changed, to the nearest.
        after: the same, as rounded.
    """

    weights: dict[str, Array] = field(default_factory=dict)
    tried: int = 0
    before: float = 0.0
    after: float = 0.0

    def line(self) -> str:
        """Say what was done."""
        if not self.weights:
            return f"weights of {self.tried} layers are rounded to the nearest: nothing was better"
        share = self.after / self.before if self.before else 1.0
        return (
            f"weights of {len(self.weights)} of {self.tried} layers are rounded so that their "
            f"products stay right: {share:.0%} of the squared error on samples kept apart"
        )


def candidates(model: ir.Model, names: AbstractSet[str]) -> list[WeightProduct]:
    """Return the layers among the named ones that this is done for; shared weights are not."""
    found, transposed = [], transposed_weights(model.graph)
    for node in model.graph:
        if node.name not in names or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        if len(list(node.inputs[1].uses())) != 1 or node.inputs[1] in transposed:
            continue
        if not np.isfinite(array_of(node.inputs[1])).all():
            continue
        product = product_of(node)
        if product is not None:
            found.append(product)
    return found


def fit(
    model: ir.Model,
    names: AbstractSet[str],
    grid: Grid,
    data: Callable[[], Iterator[Feeds]],
    *,
    samples: int = 0,
    most_work: float = MOST_WORK,
    notify: Callable[[float], None] = lambda _: None,
) -> Rounding:
    """Round the weights of the named layers.

    Args:
        model: float; it is not modified.
        names: Names of nodes with weights.
        grid: what they are rounded to.
        data: calibration samples.
        samples: how many they are; 0 if unknown.
        most_work: multiplications, beyond which layers stay with the nearest; not a time, so that
            the same model and data give the same file.
        notify: the share of the layers that is done.

    Raises:
        RunError: the model failed on a sample.
    """
    found = Rounding()
    products = _affordable(candidates(model, names), samples or MOST_SAMPLES, most_work)
    for product, moments in sum_up(model, products, data, samples):
        found.tried += 1
        _try(found, product, moments, grid)
        notify(found.tried / len(products))
    return found


def _affordable(
    products: Sequence[WeightProduct], samples: int, most_work: float
) -> list[WeightProduct]:
    """Return those that together stay below a bound, the cheapest first, in the model's order."""

    def work(product: WeightProduct) -> float:
        squares = float(product.groups) * product.inputs**2
        return squares * (samples * product.wanted(samples) + product.inputs + product.outputs)

    left, chosen = most_work, set()
    for product in sorted(products, key=work):
        left -= work(product)
        if left < 0:
            break
        chosen.add(id(product))
    return [p for p in products if id(p) in chosen]


def _try(found: Rounding, product: WeightProduct, moments: Moments, grid: Grid) -> None:
    if not np.isfinite(moments.fitted).all() or not np.isfinite(moments.judged).all():
        # Squares of what was seen leave single precision: there is nothing to weigh errors by.
        return
    weights = array_of(product.node.inputs[1])
    matrices = product.matrices(weights).astype(np.float64)
    flat = matrices.reshape(-1, matrices.shape[-1])
    scale, steps = (a.astype(np.float64).reshape(matrices.shape) for a in grid.steps(flat))
    low, high = grid.ends
    # What a scale is chosen by stays, so that the same scale is chosen again.
    extreme = np.abs(matrices) >= (high - _NEAR_END) * np.abs(scale)
    plain = steps * scale
    by_input = [np.ascontiguousarray(np.moveaxis(a, 2, 0)) for a in (scale, extreme, plain)]

    def nearest(values: Floats, at: int) -> Floats:
        part, stays, stored = (a[at] for a in by_input)
        free = np.clip(np.rint(values / part), low, high) * part
        return np.asarray(np.where(stays, stored, free))

    rounded = round_weights(matrices, moments.fitted, nearest)
    carried = np.where(extreme, matrices, rounded)
    judged = moments.judged if moments.judged.any() else moments.fitted
    before = product_error(plain - matrices, judged)
    after = product_error(rounded - matrices, judged)
    # Output by output: a row that did not gain, or whose grid would move, stays as it was.
    better = _same(carried, rounded, grid).reshape(before.shape) & (after < before)
    total, gained = float(before.sum()), float(np.where(better, after, before).sum())
    if total > 0 and gained < PAYS * total:
        carried = np.where(better[..., None], carried, matrices)
        found.weights[product.node.name or ""] = product.restored(carried, weights.shape)
        found.before += total
        found.after += gained


def _same(carried: Floats, rounded: Floats, grid: Grid) -> Array:
    """Return the outputs whose weights the nearest rounding makes what they are meant to be."""
    rows = rounded.reshape(-1, rounded.shape[-1])
    again = grid.floats(carried.astype(np.float32).reshape(rows.shape))
    size = np.abs(rows).max(axis=1, initial=0.0)
    return np.asarray(np.abs(again - rows).max(axis=1, initial=0.0) <= 1e-5 * size)


def grids(model: ir.Model, recipe: Recipe, limits: Quantization) -> dict[Grid, frozenset[str]]:
    """Return the layers of each grid that a recipe rounds to on a target."""
    if recipe.is_static:
        units = lay_out(model, limits).units
        named = (u.name for u in units if u.kind == "weighted" and u.op in limits.per_channel)
        return {Grid(): frozenset(named)}
    found: dict[Grid, set[str]] = {}
    for node in model.graph:
        if node.op_type not in WEIGHTED or node.domain or not takes_integers(node):
            continue
        if limits.flat and not is_flat(node):
            continue
        size = block_of(node, recipe, whole=limits.whole_blocks, smaller=limits.smaller_blocks)
        grid = Grid(size, limits.positive_blocks) if size else Grid()
        found.setdefault(grid, set()).add(node.name or "")
    return {grid: frozenset(names) for grid, names in found.items()}


def merged(
    roundings: Mapping[Grid, Rounding], wanted: Iterable[Grid], kept: AbstractSet[str]
) -> dict[str, Array]:
    """Return the weights of all wanted grids; layers that stay float have their own."""
    return {
        name: array
        for grid in wanted
        if grid in roundings
        for name, array in roundings[grid].weights.items()
        if name not in kept
    }


def substituted(model: ir.Model, weights: Mapping[str, Array]) -> ir.Model:
    """Return a copy with other weights, by name of their node."""
    if not any(n.name in weights for n in model.graph):
        return model
    model = model.clone()
    namer = Namer(model)
    for node in model.graph:
        array = weights.get(node.name or "")
        if array is not None and node.inputs[1] is not None:
            name = namer.fresh(f"{node.inputs[1].name}.rounded")
            fresh = add_initializer(model.graph, name, array.astype(np.float32))
            node.replace_input_with(1, fresh)
    return model


def thinned(
    data: Callable[[], Iterator[Feeds]], total: int
) -> tuple[Callable[[], Iterator[Feeds]], int]:
    """Return as many samples of a data set as say enough, spread over it, and their number."""
    step = -(-total // MOST_SAMPLES)
    if step < 2:
        return data, total
    return lambda: itertools.islice(data(), 0, None, step), -(-total // step)


def kept_apart(data: Callable[[], Iterator[Feeds]], total: int, most: int) -> list[Feeds]:
    """Return samples that weights are not fitted to, spread over the data; all if they are few."""
    if total < HELD_OUT:
        return list(itertools.islice(data(), most))
    step = HELD_OUT * max(1, total // (HELD_OUT * most))
    return list(itertools.islice(data(), HELD_OUT - 1, None, step))[:most]


def output_error(
    model: ir.Model, written: Sequence[ir.Model], samples: Sequence[Feeds]
) -> list[float]:
    """Return the squared error of each written graph's outputs over the float model's squares."""
    names = [v.name or "" for v in model.graph.outputs if v.dtype == ir.DataType.FLOAT]
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        sessions = []
        for index, graph in enumerate((model, *written)):
            place = Path(folder) / str(index)
            place.mkdir()
            sessions.append(open_session(graph, place))
        signal, noise = 0.0, [0.0] * len(written)
        for feeds in samples:
            right, *others = (s.run(names, dict(feeds)) for s in sessions)
            signal += sum(float(np.sum(np.square(a, dtype=np.float64))) for a in right)
            for index, other in enumerate(others):
                pairs = zip(right, other, strict=True)
                noise[index] += sum(
                    float(np.sum(np.square(a.astype(np.float64) - b))) for a, b in pairs
                )
        del sessions
    return [n / signal if signal > 0 else n for n in noise]
