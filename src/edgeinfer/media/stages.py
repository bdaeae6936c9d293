"""What compiled Fourier transforms and mel bands are given besides the audio, in NumPy alone.

A transform of n numbers is a complex one of n / 2 and a last step; it goes in stages, one for each
small factor of n / 2. Where n is odd or has a larger factor, a first stage takes that factor out of
real numbers, by sums over all of them, and what is left is complex.
"""

from __future__ import annotations

from math import prod

import numpy as np

from edgeinfer.types import Array

RADICES = (4, 2, 3, 5, 7)


_LARGEST = 256
"""Factor that is summed over: the work grows with its square."""

BLOCK = 4
"""Results of such a sum that are made together."""


def radices(size: int) -> tuple[int, ...]:
    """Of the stages of the complex transform of half the size."""
    rest, found = size // 2, []
    for radix in RADICES:
        while rest > 1 and rest % radix == 0:
            rest //= radix
            found.append(radix)
    return tuple(found)


def fits(size: int) -> bool:
    """Whether there is a transform of a size: even, of factors 2, 3, 5 and 7."""
    return size >= 2 and size % 2 == 0 and prod(radices(size)) * 2 == size


def summed(size: int) -> int:
    """The factor that is summed over; 1 where none is."""
    if fits(size):
        return 1
    rest = size
    for radix in (2, 3, 5, 7):
        while rest % radix == 0:
            rest //= radix
    # An odd size of small factors gives one of them.
    return rest if rest > 1 else next((r for r in (3, 5, 7) if size % r == 0), 1)


def possible(size: int) -> bool:
    """Whether there is a transform of a size at all."""
    return size >= 2 and (fits(size) or 1 < summed(size) <= _LARGEST)


def sums(size: int) -> tuple[int, int, tuple[int, ...]]:
    """Of a transform with a summed factor: it, half of it, and the radices behind."""
    large = summed(size)
    return large, large // 2, radices(size // large * 2)


def starts_behind(size: int) -> list[int]:
    """Where the factors of each stage begin, the first of which is summed; then its waves."""
    large, _, behind = sums(size)
    found, left = [0], size
    for radix in (large, *behind):
        found.append(found[-1] + left // radix * (radix - 1))
        left //= radix
    return found


def count(size: int) -> int:
    """Numbers of ``factors``."""
    if fits(size):
        return starts(size)[-1] + size // 2 + 1
    half = summed(size) // 2
    return starts_behind(size)[-1] + -(-half // BLOCK) * BLOCK * half


def starts(size: int) -> list[int]:
    """Where the factors of each stage begin, and those of the last step."""
    found, left = [0], size // 2
    for radix in radices(size):
        found.append(found[-1] + left // radix * (radix - 1))
        left //= radix
    return found


def factors(size: int, dtype: str = "float32") -> Array:
    """The factors between the stages and those of the last step, (count, 2)."""
    small = fits(size)
    large, half, behind = sums(size)
    left = size // 2 if small else size
    turns = []
    for radix in radices(size) if small else (large, *behind):
        block = np.arange(left // radix)[:, None] * np.arange(1, radix)
        turns.append((block / left).ravel())
        left //= radix
    if small:
        turns.append(np.arange(size // 2 + 1) / size)
    else:
        # By blocks of results; those beyond the last are not kept.
        made = np.arange(1, -(-half // BLOCK) * BLOCK + 1).reshape(-1, 1, BLOCK)
        turns.append((made * np.arange(1, half + 1)[:, None] % large / large).ravel())
    angles = -2 * np.pi * np.concatenate(turns)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(dtype)


def tables(window: Array, filters: Array, dtype: str = "float32") -> tuple[Array, ...]:
    """What a mel spectrogram takes besides the audio.

    Args:
        window: (fft,), what samples are multiplied by.
        filters: (bands, fft // 2 + 1), what each band takes of each frequency.
        dtype: Element type of the arithmetic.

    Returns:
        The window; the ``factors``; first frequency, number of them and place of the first weight,
        (bands, 3) int32; the weights.
    """
    bands, weights = np.zeros((len(filters), 3), np.int32), []
    place = 0
    for band, row in enumerate(filters):
        (used,) = np.nonzero(row)
        first, count = (used[0], used[-1] - used[0] + 1) if used.size else (0, 0)
        bands[band] = first, count, place
        weights.append(row[first : first + count])
        place += count
    # A buffer of nothing is none.
    joined = np.concatenate([*weights, np.zeros(1)]).astype(dtype)
    return window.astype(dtype), factors(len(window), dtype), bands, joined
