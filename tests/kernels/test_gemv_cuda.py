"""Products with 4-bit and 8-bit weights for a GPU, run on the CPU as the CUDA C they become."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")

from edgeinfer.kernels.defs.gemv_cuda import Share, gemv, pack
from tests.kernels import cuda_text


@pytest.mark.parametrize(
    ("n", "k", "bits", "block", "vectors", "share"),
    [
        (9, 160, 4, 64, 1, Share(4, 1)),
        (8, 1056, 4, 32, 3, Share(2, 4)),
        (7, 288, 8, 128, 2, Share(4, 2)),
        (9, 1120, 4, 32, 2, Share(4, 1, 4)),
        (5, 288, 8, 32, 1, Share(2, 2, 2)),
    ],
)
def test_numbers(
    n: int, k: int, bits: int, block: int, vectors: int, share: Share, tmp_path: Path
) -> None:
    rng = np.random.default_rng(n)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    q = rng.integers(low, high, (n, k))
    scales = rng.uniform(0.01, 0.1, (n, -(-k // block))).astype(np.float16)
    x = rng.standard_normal((vectors, k)).astype(np.float32)
    y = np.full((vectors, n), np.nan, np.float32)
    kernel = gemv(n, k, bits, block, vectors, share)
    cuda_text.run(kernel, [pack(q, bits), scales, x, y], tmp_path)
    weights = (q - 8.0 if bits == 4 else q.astype(np.float64)) * np.repeat(
        scales.astype(np.float64), block, axis=1
    )[:, :k]
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights.T, rtol=2e-5, atol=2e-4)


def test_sizes_that_cannot_be_are_refused() -> None:
    for given in (
        {"k": 40},
        {"bits": 3},
        {"block": 48},
        {"vectors": 0},
        {"share": Share(4, 64)},
        {"share": Share(4, 4, 3)},
    ):
        with pytest.raises(ValueError, match="vectors"):
            gemv(**{"n": 8, "k": 64, **given})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple of 32"):
        pack(np.zeros((2, 40), np.int8), 4)
