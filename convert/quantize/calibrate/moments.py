"""Sums of products of what weights are multiplied with, taken from data as it streams by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeinfer.convert.quantize.calibrate.observe import watched
from edgeinfer.convert.quantize.units import array_of
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

MOST_INPUTS = 2304
"""Products over more inputs are rounded to the nearest: the effort grows with the cube."""

_ROWS = 512
"""Positions of one sample that are taken into account at most."""

_ENOUGH, _PER_INPUT = 4096, 8
"""Positions over all samples, or for each input if that is more, beyond which sums of products say
no more of how inputs go together."""

_FEWEST = 32
"""Positions of one sample that are taken into account in any case."""

_AT_ONCE = 192 << 20
"""Bytes of sums that are kept at a time; the rest is seen in further rounds over the data."""

HELD_OUT = 4
"""Every so many samples one is kept to judge by."""


@dataclass(slots=True)
class Moments:
    """Of one layer.

    Attributes:
        fitted: (groups, inputs, inputs): from the samples that weights are fitted to.
        judged: the same of samples that they are not fitted to.
    """

    fitted: npt.NDArray[np.float64]
    judged: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WeightProduct:
    """A node with weights, as matrices.

    Attributes:
        node: a convolution or product.
        groups: Groups of it.
        outputs: Outputs of a group.
        inputs: Inputs of one output: the elements that a sum goes over.
    """

    node: ir.Node
    groups: int
    outputs: int
    inputs: int
    attributes: dict[str, object] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Name of what the weights are multiplied with."""
        value = self.node.inputs[0]
        return "" if value is None else value.name or ""

    @property
    def nbytes(self) -> int:
        """Size of its moments."""
        return 16 * self.groups * self.inputs * self.inputs

    def matrices(self, weights: Array) -> Array:
        """Return the weights as (groups, outputs, inputs)."""
        if self.node.op_type == "Conv":
            return weights.reshape(self.groups, self.outputs, self.inputs)
        return (weights if self.attributes.get("transB") else weights.T)[None]

    def restored(self, matrices: Array, shape: tuple[int, ...]) -> Array:
        """Return matrices in the shape of the weights."""
        if self.node.op_type == "Conv":
            return matrices.reshape(shape)
        return np.asarray(matrices[0] if self.attributes.get("transB") else matrices[0].T)

    @property
    def operand(self) -> tuple[object, ...]:
        """What the sums of products depend on: layers for which it is equal share them."""
        if self.node.op_type != "Conv":
            return (self.source,)
        weights = self.node.inputs[1]
        shape = () if weights is None or weights.shape is None else weights.shape.numpy()[1:]
        spatial = len(shape) - 1
        steps = (self._ints("strides", [1] * spatial), self._ints("dilations", [1] * spatial))
        pads = self._ints("pads", [0] * (2 * spatial))
        return (self.source, self.groups, *shape, *(tuple(x) for x in (*steps, pads)))

    def wanted(self, samples: int) -> int:
        """Return the positions of one sample that are taken into account, of so many samples."""
        enough = max(_ENOUGH, _PER_INPUT * self.inputs)
        return min(_ROWS, max(_FEWEST, -(-enough // samples))) if samples else _ROWS

    def rows(self, array: Array, most: int = _ROWS) -> Array:
        """Return (groups, positions, inputs) of an operand, some of many positions."""
        if self.node.op_type != "Conv":
            flat = array.reshape(-1, array.shape[-1])
            return np.asarray(flat[_spread(len(flat), most)][None])
        return self._windows(array, most)

    def _windows(self, array: Array, most: int) -> Array:
        weights = array_of(self.node.inputs[1])
        spatial = weights.ndim - 2
        kernel = weights.shape[2:]
        strides = self._ints("strides", [1] * spatial)
        steps = self._ints("dilations", [1] * spatial)
        pads = self._ints("pads", [0] * (2 * spatial))
        edges = list(zip(pads[:spatial], pads[spatial:], strict=True))
        padded = np.pad(array, [(0, 0), (0, 0), *edges])
        reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, steps, strict=True))
        axes = tuple(range(2, 2 + spatial))
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
        picked: list[slice] = [slice(None), slice(None)]
        picked += [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in steps]
        windows = windows[tuple(picked)]
        # (batch, channels, positions..., kernel...): positions are thinned before they are copied.
        positions = windows.shape[2 : 2 + spatial]
        count = int(np.prod(positions)) * windows.shape[0]
        flat = _spread(count, most)
        index = np.unravel_index(flat, (windows.shape[0], *positions))
        batch, rest = index[0], index[1:]
        taken = np.asarray(windows[(batch, slice(None), *rest)])  # type: ignore[arg-type]
        per_group = weights.shape[1]
        grouped = taken.reshape(len(flat), self.groups, per_group * int(np.prod(kernel)))
        return np.asarray(np.swapaxes(grouped, 0, 1))

    def _ints(self, name: str, default: list[int]) -> list[int]:
        attr = self.node.attributes.get(name)
        return default if attr is None else list(attr.as_ints())


def _spread(count: int, most: int) -> npt.NDArray[np.int64]:
    if count <= most:
        return np.arange(count)
    # An odd stride, so that no row length is a multiple of it and every column is met.
    return np.arange(0, count, -(-count // most) | 1)


def product_of(node: ir.Node) -> WeightProduct | None:
    """Return a node as matrices, or None where that is not done."""
    shape = array_of(node.inputs[1]).shape
    attributes = {k: a.value for k, a in node.attributes.items()}
    if node.op_type == "Conv":
        groups = int(attributes.get("group", 1))
        if attributes.get("auto_pad", "NOTSET") != "NOTSET" or shape[0] % groups:
            return None
        found = WeightProduct(node, groups, shape[0] // groups, int(np.prod(shape[1:])), attributes)
    elif node.op_type in ("MatMul", "Gemm") and len(shape) == 2 and not attributes.get("transA"):
        outputs, inputs = shape if attributes.get("transB") else shape[::-1]
        found = WeightProduct(node, 1, outputs, inputs, attributes)
    else:
        return None
    return found if found.inputs <= MOST_INPUTS and found.nbytes <= _AT_ONCE else None


def sum_up(
    model: ir.Model,
    products: Sequence[WeightProduct],
    data: Callable[[], Iterator[Feeds]],
    samples: int = 0,
) -> Iterator[tuple[WeightProduct, Moments]]:
    """Give the moments of each product; only some are in memory at a time.

    Args:
        model: float.
        products: Products of it.
        data: calibration samples.
        samples: how many they are: of many, fewer positions of each are needed; 0 if unknown.

    Raises:
        RunError: the model failed on a sample.
    """
    for group in _grouped(products):
        sums = {
            operand: Moments(*(np.zeros((p.groups, p.inputs, p.inputs)) for _ in range(2)))
            for operand, p in group.items()
        }
        readers: dict[str, list[tuple[object, ...]]] = {}
        for operand, product in group.items():
            readers.setdefault(product.source, []).append(operand)
        counts = dict.fromkeys(readers, 0)
        for arrays in watched(model, list(readers), data):
            for name, array in arrays.items():
                held_out = counts[name] % HELD_OUT == HELD_OUT - 1
                counts[name] += 1
                single = np.asarray(array, np.float32)
                for operand in readers[name]:
                    product = group[operand]
                    _add(sums[operand], product.rows(single, product.wanted(samples)), held_out)
        for product in products:
            if product.operand in sums:
                yield product, sums[product.operand]


def _add(sums: Moments, rows: Array, held_out: bool) -> None:
    # In single precision: a sum over so few positions loses nothing that matters.
    good = np.isfinite(rows).all(axis=(0, 2))
    if not good.all():
        rows = rows[:, good]
    target = sums.judged if held_out else sums.fitted
    # What overflows is infinite from then on: nothing is weighed by it.
    with np.errstate(over="ignore", invalid="ignore"):
        target += np.swapaxes(rows, 1, 2) @ rows


def _grouped(
    products: Sequence[WeightProduct],
) -> Iterator[dict[tuple[object, ...], WeightProduct]]:
    """Part the operands into groups whose sums fit into memory; one product stands for each."""
    group: dict[tuple[object, ...], WeightProduct] = {}
    size = 0
    distinct: dict[tuple[object, ...], WeightProduct] = {}
    for product in products:
        distinct.setdefault(product.operand, product)
    for operand, product in distinct.items():
        if group and size + product.nbytes > _AT_ONCE:
            yield group
            group, size = {}, 0
        group[operand] = product
        size += product.nbytes
    if group:
        yield group
