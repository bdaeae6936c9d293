"""Random nets of values that are 4 along every axis: an order that is guessed would be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.convert.lower.tflite.run import check

SIZE = 4
SHAPE = ",".join(["4"] * 4)
QUICK = 6
WHOLE = 250
CLOSE = 2e-4
"""Means and products of what is normalised add up."""


@dataclass
class Net:
    """A net that grows operator by operator; every value has the same shape."""

    rng: np.random.Generator
    nodes: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=lambda: ["x"])
    count: int = 0

    def name(self) -> str:
        """A new name."""
        self.count += 1
        return f"v{self.count}"

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        """A constant."""
        values = self.rng.normal(size=shape) * scale
        return self._constant("float", shape, [f"{v:.3f}" for v in values.reshape(-1)])

    def ints(self, *values: int) -> str:
        """A vector."""
        return self._constant("int64", (len(values),), [str(int(v)) for v in values])

    def _constant(self, kind: str, shape: tuple[int, ...], values: list[str]) -> str:
        name = self.name()
        sizes = f"[{','.join(map(str, shape))}]" if shape else ""
        self.constants.append(f"{kind}{sizes} {name} = {{{', '.join(values)}}}")
        return name

    def axis(self) -> int:
        """Any axis."""
        return int(self.rng.integers(0, 4))

    def order(self, size: int = 4) -> str:
        """Any order of axes."""
        return str([int(p) for p in self.rng.permutation(size)]).replace(" ", "")

    def letters(self, letters: str) -> str:
        """Letters in any order."""
        return "".join(self.rng.permutation(list(letters)))

    def text(self) -> str:
        """The net as ONNX text."""
        head = f"<{', '.join(self.constants)}>" if self.constants else ""
        y = self.values[-1]
        return f"g (float[{SHAPE}] x) => (float[{SHAPE}] {y}) {head} {{ {' '.join(self.nodes)} }}"


Grow = Callable[[Net, str, str, str], str]
"""From a net, two of its values and the name of the next one to the operators that give it."""


def shuffled(n: Net, x: str, z: str, y: str) -> str:
    shape = [[4, 4, 16], [16, 4, 4], [4, 16, 4]][n.rng.integers(0, 3)]
    a, b = n.name(), n.name()
    return (
        f"{a} = Reshape({x}, {n.ints(*shape)}) {b} = Transpose<perm={n.order(3)}>({a}) "
        f"{y} = Reshape({b}, {n.ints(4, 4, 4, 4)})"
    )


def joined(n: Net, x: str, z: str, y: str) -> str:
    axis, a = n.axis(), n.name()
    cut = f"{n.ints(2)}, {n.ints(6)}, {n.ints(axis)}"
    return f"{a} = Concat<axis={axis}>({x}, {z}) {y} = Slice({a}, {cut})"


def swapped(n: Net, x: str, z: str, y: str) -> str:
    axis, a, b = n.axis(), n.name(), n.name()
    return f"{a}, {b} = Split<axis={axis}, num_outputs=2>({x}) {y} = Concat<axis={axis}>({b}, {a})"


def padded(n: Net, x: str, z: str, y: str) -> str:
    axis, a = n.axis(), n.name()
    amounts = [int(i == axis) + int(i == axis + 4) * 2 for i in range(8)]
    cut = f"{n.ints(1)}, {n.ints(5)}, {n.ints(axis)}"
    return f"{a} = Pad({x}, {n.ints(*amounts)}) {y} = Slice({a}, {cut})"


def grouped(n: Net, x: str, z: str, y: str) -> str:
    a, b, c = n.name(), n.name(), n.name()
    return (
        f"{a} = Reshape({x}, {n.ints(0, 2, -1)}) "
        f"{b} = InstanceNormalization({a}, {n.floats(2)}, {n.floats(2)}) "
        f"{c} = Reshape({b}, {n.ints(4, 4, 4, 4)}) {y} = Mul({c}, {n.floats(4, 1, 1)})"
    )


def summed(n: Net, x: str, z: str, y: str) -> str:
    gone = "abcd"[n.axis()]
    result = n.letters("abcd".replace(gone, "e"))
    weights = n.floats(4, 4, scale=0.4)
    return f'{y} = Einsum<equation="abcd,{gone}e->{result}">({x}, {weights})'


def reduced(n: Net, x: str, z: str, y: str) -> str:
    a, b = n.name(), n.name()
    return (
        f"{a} = ReduceMax<keepdims=0>({x}, {n.ints(n.axis())}) "
        f"{b} = Unsqueeze({a}, {n.ints(n.axis())}) {y} = Add({b}, {z})"
    )


def indexed(n: Net, x: str, z: str, y: str) -> str:
    a, b = n.name(), n.name()
    return f"{a} = ArgMax<axis={n.axis()}>({x}) {b} = Cast<to=1>({a}) {y} = Add({b}, {z})"


def scaled(n: Net, x: str, z: str, y: str) -> str:
    shape = [(4, 1, 1), (4,), (1, 4, 1, 1), (4, 1), (4, 4)][n.rng.integers(0, 5)]
    return f"{y} = Mul({x}, {n.floats(*shape)})"


def pixels(n: Net, x: str, z: str, y: str) -> str:
    a = n.name()
    return f"{a} = DepthToSpace<blocksize=2>({x}) {y} = SpaceToDepth<blocksize=2>({a})"


def centred(n: Net, x: str, z: str, y: str) -> str:
    a = n.name()
    return f"{a} = ReduceMean({x}, {n.ints(n.axis())}) {y} = Sub({z}, {a})"


def conv(kernel: int, group: int) -> Grow:
    def grow(n: Net, x: str, z: str, y: str) -> str:
        w = n.floats(4, 4 // group, kernel, kernel, scale=0.2)
        pads = str([kernel // 2] * 4).replace(" ", "")
        return f"{y} = Conv<pads={pads}, group={group}>({x}, {w})"

    return grow


OPERATORS: tuple[Grow, ...] = (
    *(conv(3, 1), conv(3, 1), conv(1, 2), conv(7, 4)),
    *(shuffled, joined, swapped, padded, grouped, summed, reduced, indexed, scaled, pixels),
    centred,
    lambda n, x, z, y: f"{y} = Relu({x})",
    lambda n, x, z, y: f"{y} = Add({x}, {z})",
    lambda n, x, z, y: f"{y} = Transpose<perm={n.order()}>({x})",
    lambda n, x, z, y: f"{y} = Transpose<perm={n.order()}>({x})",
    lambda n, x, z, y: f"{y} = Softmax<axis={n.axis()}>({x})",
    lambda n, x, z, y: f'{y} = Einsum<equation="abcd->{n.letters("abcd")}">({x})',
    lambda n, x, z, y: f"{y} = Gather<axis={n.axis()}>({x}, {n.ints(*n.rng.permutation(4))})",
    lambda n, x, z, y: f"{y} = InstanceNormalization({x}, {n.floats(4)}, {n.floats(4)})",
    lambda n, x, z, y: f"{y} = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>({x})",
    lambda n, x, z, y: f"{y} = MatMul({x}, {z})",
    lambda n, x, z, y: f"{y} = LayerNormalization({x}, {n.floats(4)}, {n.floats(4)})",
)


def random_net(seed: int) -> str:
    """The same net for the same seed."""
    net = Net(np.random.default_rng(seed))
    for _ in range(int(net.rng.integers(5, 14))):
        x = net.values[-1 - int(net.rng.integers(0, min(4, len(net.values))))]
        z = net.values[int(net.rng.integers(0, len(net.values)))]
        y = net.name()
        grow = OPERATORS[int(net.rng.integers(0, len(OPERATORS)))]
        net.nodes.append(grow(net, x, z, y))
        net.values.append(y)
    return net.text()


def run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {"x": rng.normal(size=(4, 4, 4, 4)).astype(np.float32)}
    check(random_net(seed), feeds, rtol=CLOSE)


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_few(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many() -> None:
    for seed in range(QUICK, WHOLE):
        run(seed)
