from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.convert.llm.blocks import KINDS, Factors, Integers, StoredTensor
from edgeinfer.types import Array

INTEGERS = [name for name, kind in KINDS.items() if kind.decode is not None]


def stored(name: str, rows: int, columns: int, seed: int = 0) -> StoredTensor:
    """Random bytes whose float16 numbers are finite."""
    kind = KINDS[name]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, columns // kind.block, kind.size_bytes), dtype=np.uint8)
    for at in HALVES.get(name, ()):
        data[..., at + 1] &= 0xBB  # exponent below the one of infinities
    if name == "MXFP4":
        data[..., 0] = np.arange(data[..., 0].size).reshape(data.shape[:2]) % 255
    if name == "F32":
        data = rng.standard_normal((rows, columns)).astype(np.float32).view(np.uint8)
    if name in ("F16", "BF16"):
        data[..., 1] &= 0xBB
    return StoredTensor(name, (rows, columns), data.reshape(rows, -1))


HALVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)},
}


@pytest.mark.parametrize("name", KINDS)
def test_weights_are_those_of_the_gguf_package(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    tensor = stored(name, 6, 768)
    expected: Array = gguf.dequantize(tensor.data, gguf.GGMLQuantizationType[name])
    found = tensor.float32()
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), expected.astype(np.float32).view(np.uint32))


def test_weights_of_four_bits_by_hand() -> None:
    block = np.zeros((1, 18), np.uint8)
    block[0, :2] = np.array([0.5], np.float16).view(np.uint8)
    block[0, 2] = 0xF1
    found = StoredTensor("Q4_0", (1, 32), block).float32()[0]
    assert found[0] == (1 - 8) * 0.5
    assert found[16] == (15 - 8) * 0.5
    assert set(found[1:16]) == {-4.0}


def test_scales_by_two_levels_by_hand() -> None:
    factors = Factors(np.array([[0.5, 2]], np.float16), np.array([[1, 3, -1, 2]], np.int8), 2)
    assert factors.float32().tolist() == [[0.5, 1.5, -2.0, 4.0]]
    values = np.arange(8, dtype=np.int8)[None]
    offsets = Factors(np.array([[1, 0, 0, -1]], np.float32))
    whole = Integers(values, 0, 7, 2, factors, offsets)
    assert whole.float32().tolist() == [[1.0, 1.5, 3.0, 4.5, -8.0, -10.0, 23.0, 27.0]]


@pytest.mark.parametrize("name", INTEGERS)
def test_values_are_within_what_is_said_of_them(name: str) -> None:
    integers = stored(name, 64, 768).integers()
    assert integers is not None
    assert integers.values.dtype == np.int8
    assert (integers.values.min(), integers.values.max()) == (integers.low, integers.high)


@pytest.mark.parametrize("name", KINDS)
def test_some_rows_are_those_rows(name: str) -> None:
    tensor = stored(name, 6, 256)
    order = np.array([4, 0, 3])
    assert np.array_equal(tensor.rows(order).float32(), tensor.float32()[order], equal_nan=True)
    if (integers := tensor.integers()) is not None:
        assert np.array_equal(integers.rows(order).float32(), tensor.float32()[order])
