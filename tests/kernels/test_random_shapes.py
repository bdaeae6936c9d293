"""Kernels over shapes that nobody chose, on every machine whose code runs here, against float64.

The other tests of a kernel have its corners; these have what is between them.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.kernels import test_kernels, test_norms, test_rows, test_spectrum
from tests.kernels.products import Product
from tests.kernels.run import HERE, compiled, misaligned

from edgeinfer.kernels.defs import conv, gemv, norms, recurrent, spectrum  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEEDS = range(3)
EACH = [pytest.param(m, s, id=f"{m}-{s}") for m, s in product(HERE, SEEDS)]
each = pytest.mark.parametrize(("name", "seed"), EACH)


@each
def test_weights_of_few_bits(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    if name not in gemv.DOTS:
        pytest.skip("no such product on this machine")
    for bits in (4, 8):
        shape = (int(rng.integers(1, 90)), int(rng.integers(1, 700)))
        case = Product(bits, shape, int(rng.choice([32, 64, 128])), int(rng.integers(1, 11)))
        y = misaligned(np.full((case.vectors, shape[0]), np.nan, np.float32))
        compiled(case.kernel(gemv.DOTS[name]), name)(*case.operands(gemv.DOTS[name]), y)
        test_kernels._close(y, case.expected(), 1e-5)


@each
def test_rows_of_any_length(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_rows, "MACHINE", name)
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 1500))
    test_rows.test_softmax(size, 1.0)
    pairs = 2 * int(rng.integers(1, 80))
    turned = 2 * int(rng.integers(0, pairs // 2 + 1))
    test_rows.test_rope(pairs, turned, bool(seed % 2))


def _some(rng: np.random.Generator, low: int, high: int, count: int = 2) -> Any:
    return tuple(map(int, rng.integers(low, high, count)))


@each
def test_convolutions(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for depthwise in (False, True):
        groups = int(rng.integers(1, 9)) if depthwise else 1
        channels = groups * (1 if depthwise else int(rng.integers(1, 9)))
        filters = groups * int(rng.integers(1, 3 if depthwise else 20))
        kernel, size = _some(rng, 1, 5), _some(rng, 9, 24)
        window = conv.ConvWindow(
            *(int(rng.integers(1, 3)), channels, filters, groups, size, kernel),
            *(_some(rng, 1, 3), _some(rng, 1, 3), _some(rng, 0, 3, 4)),
        )
        test_kernels.test_conv(name, window)


@each
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers(name: str, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    one = bool(seed % 2)
    steps, batch = (1, 1) if one else (int(rng.integers(1, 5)), int(rng.integers(1, 4)))
    inputs = int(rng.integers(0, 60)) if one else 0
    hidden, reset = int(rng.integers(1, 150)), one or bool(rng.integers(2))
    cell = recurrent.CellSizes(kind, steps, batch, hidden, not one, reset, inputs=inputs)
    test_kernels._recurrent(name, cell)


@each
def test_spectra(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fft = 2 * int(rng.choice([9, 16, 25, 50, 63, 105, 128, 200, 256]))
    mel = spectrum.Mel(fft, int(rng.integers(1, fft)), int(rng.integers(1, 90)), power=1 + seed % 2)
    got, want = test_spectrum._run(mel, name, int(rng.integers(1, 70)))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * want.max())


@each
def test_sums_of_rows(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, (9, 900), (2, 2)).tolist()
    monkeypatch.setattr(test_norms, "SIZES", sizes)
    for kind in norms.KINDS:
        test_norms.test_reduced(name, kind)


@each
def test_products(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = map(int, rng.integers(1, (30, 200, 150)))
    test_kernels.test_matmul(name, (1, m, k, n), packed=True)
    test_kernels.test_matmul(name, (int(rng.integers(1, 4)), m, k, n), packed=False)
