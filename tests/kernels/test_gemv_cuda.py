"""Products with 4-bit and 8-bit weights on a GPU; without one the CPU stands in for it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from edgeinfer.kernels.defs import ahead
from edgeinfer.kernels.defs.gemv_cuda import Share, gemv, pack, share_for
from edgeinfer.machine.cuda import cuda_devices
from tests import cuda_emulator, samples

WORKER, ROOT = Path(__file__).with_name("gemv_cuda_worker.py"), Path(__file__).parents[2]

# Rows, columns, bits, block, vectors, and how the work is cut.
CASES: dict[str, tuple[int, int, int, int, int, tuple[Any, ...]]] = {
    "rows and columns left over": (9, 160, 4, 64, 1, (2, 1, 2, True, True)),
    "several turns, a few vectors": (8, 2112, 4, 32, 2, (2, 2, 1, True, True)),
    "bytes": (7, 288, 8, 128, 2, (2, 1, 2, True, False)),
    "an odd number of rows": (11, 1120, 4, 32, 1, (3, 2, 1, True, True, 2)),
    "more sums than threads": (9, 64, 4, 32, 5, (8, 1, 1, False, False)),
    "as floats": (9, 1120, 4, 32, 1, (4, 2, 1, False, True)),
    "bytes as floats": (5, 288, 8, 32, 1, (2, 1, 2, False, False)),
}


def _arrays(name: str) -> tuple[Any, ...]:
    n, k, bits, block, vectors, cut = CASES[name]
    rng = np.random.default_rng(n)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    q = rng.integers(low, high, (n, k))
    q[0, :32], q[1, :32] = low, high - 1
    scales = rng.uniform(0.01, 0.1, (n, -(-k // block))).astype(np.float16)
    x = rng.standard_normal((vectors, k)).astype(np.float32)
    # Blocks of nothing, of the least numbers, of large ones, and one with a single large element.
    x[0, :32] = 0
    x[-1, 32:64] *= np.float32(1e-38)
    x[0, 32:40] = np.float32(3e30) if name == "bytes" else x[0, 32:40]
    x[0, k - 1] = 3000
    return q, scales, x, bits, block, cut


def _wanted(q: Any, scales: Any, x: Any, bits: int, block: int, cut: Any) -> tuple[Any, Any]:
    """The product, and how large what is summed is, to those who see it in whole numbers."""
    factors = np.repeat(scales.astype(np.float64), block, axis=1)[:, : q.shape[1]]
    weights = (q - 8.0 if bits == 4 else q.astype(np.float64)) * factors
    exact = x.astype(np.float64)
    sizes = np.abs(exact)
    if Share(*cut).digits:
        sizes = np.repeat(sizes.reshape(len(x), -1, 32).max(-1), 32, axis=1)
    return exact @ weights.T, sizes @ np.abs(weights).T


def _run(cases: list[tuple[Any, ...]], folder: Path) -> list[tuple[Any, int | None]]:
    path = folder / "cases"
    path.write_bytes(pickle.dumps(cases))
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-W", "ignore", str(WORKER), str(path)],
        check=True,
        env={**os.environ, "PYTHONPATH": places},
    )
    found: list[tuple[Any, int | None]] = pickle.loads(path.read_bytes())
    return found


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, int | None]]:
    if not cuda_devices() and not cuda_emulator.is_possible():
        pytest.skip("g++ on Linux stands in for nvcc")
    names = samples.asked(request, "name")
    cases = [_arrays(name) for name in names]
    spoiled = list(_arrays("rows and columns left over"))
    spoiled[2] = np.ones_like(spoiled[2])
    spoiled[2][0, 70] = np.nan
    answers = _run([*cases, tuple(spoiled)], tmp_path_factory.mktemp("gemv"))
    return dict(zip([*names, "spoiled"], answers, strict=True))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, found: dict[str, tuple[Any, int | None]]) -> None:
    arrays = _arrays(name)
    y, early = found[name]
    right, size = _wanted(*arrays)
    # As close as sums in float32 are: units in the last place of what is summed.
    assert (np.abs(y - right) <= 2e-7 * size).all()
    if early is not None:
        assert early == Share(*arrays[-1]).ahead


def test_what_is_no_number_stays_none(found: dict[str, tuple[Any, int | None]]) -> None:
    assert np.isnan(found["spoiled"][0]).all()


def test_rows_of_a_thread_leave_enough_blocks() -> None:
    rows = {n: share_for(n, 4096).rows for n in (64, 1024, 4096, 11008)}
    assert rows == {64: 1, 1024: 2, 4096: 8, 11008: 16}
    for k in (32, 4096, 11008, 28672):
        for vectors in range(1, 9):
            assert not share_for(11008, k, vectors).problem(vectors)


def test_an_early_start_is_there_from_hopper_on() -> None:
    assert [ahead.has(arch) for arch in ("sm_87", "sm_90", "sm_90a", "sm_110")] == [0, 1, 1, 1]


def test_sizes_that_cannot_be_are_refused() -> None:
    for given in (
        {"k": 40},
        {"bits": 3},
        {"block": 48},
        {"vectors": 0},
        {"share": Share(4, 64)},
        {"share": Share(4, 4, 4, blocks=5)},
        {"share": Share(4, 16, 1)},
        {"share": Share(0, 4)},
        {"share": Share(32), "vectors": 3},
    ):
        with pytest.raises(ValueError, match="vectors"):
            gemv(**{"n": 8, "k": 64, **given})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple of 32"):
        pack(np.zeros((2, 40), np.int8), 4)
