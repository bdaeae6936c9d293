"""What a tape for NVIDIA GPUs is agreed to be between those who write and who run it.

Its arrays are named as in ``edgeinfer.llm.tape``, but that rows which products take lie as pairs of
bfloat16, in as many bytes as float32 has: ``att``, ``h`` and ``xs``, which is ``x`` times a norm's
factors; ``squares`` holds sums of squares of ``x``. Further ones are ``order``, the pairs of a
token and one of its experts, by experts; ``jobs<w>``, a count of parts of it of up to ``w`` eights,
and of each its expert, its first place and how many; ``xe``, what experts give, (pairs, hidden).
``more`` is what adapters add, before the product does.

A call's arguments are arrays, ``#<n>`` for an integer, ``%<x>`` for a float32, ``count`` for the
number of tokens, or of outputs where these are meant, ``columns`` for positions of a row of the
table, ``layer`` for where a layer lies in a page. Products have as many blocks of threads as
items, for each 8 tokens of ``eights_of`` their widths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from edgeinfer.llm.config import LlmConfig
from edgeinfer.llm.step import PAGE

_STEM = "sm_"
_CODE = re.compile(r"kernels\.(sm_\d+)\.cubin")


def is_for_gpu(machine: str) -> bool:
    """Whether a tape's code is for GPUs; then ``machine`` lists their architectures."""
    return machine.startswith(_STEM)


TILE = 16
"""Rows of a matrix that lie together."""

THREADS = 256
"""Of a block, in all kernels but that which looks for the largest logit."""

WARPS = 8

WIDTHS = (1, 4, 8)
"""Eights of tokens in a step that there are products for; the last is for more, too."""

ROUTED_WIDTHS = (1, 4)
"""Eights of pairs of an expert that are multiplied together."""

MOST_FOLD = 4
"""Eights of slices that columns of a matrix are cut into, at most: then a block is full."""

CACHES = ("float16", "uint8")
"""Types of caches, the usual one first."""

_MOST_SHARED = 4
"""Heads of queries that a block of threads computes, at most: more leave it too few registers."""


def layer_words(cache: str, heads: int, size: int) -> int:
    """Words of 16 bits that a page has of a layer: keys, values, and what bytes are scaled by."""
    return PAGE * heads * (size + 8 if cache == "uint8" else 2 * size)


def width_for(eights: int) -> int:
    """The width that so many eights of tokens are multiplied by.

    Two are taken one next to the other: threads that do both take longer than twice as many.
    """
    if eights <= 2:
        return 1
    return next((width for width in WIDTHS if width >= eights), WIDTHS[-1])


def eights_of(width: int) -> int:
    """Eights of tokens that a block of threads takes."""
    return min(width, 4)


def tiles_of(width: int, tiles: int) -> int:
    """Tiles of rows that it takes: of many tokens several, which are read less often so.

    Of few tokens two, where there are rows enough to keep a GPU busy: half of the work is about the
    tokens.
    """
    if width == WIDTHS[-1]:
        return 4
    return 2 if width == 1 and tiles >= _MANY else 1


_MANY = 2048


def routed_width(pairs: int, experts: int) -> int:
    """The width that so many pairs of a token and an expert are multiplied by."""
    few, many = ROUTED_WIDTHS
    return many if pairs > 2 * 8 * few * experts else few


def most_jobs(pairs: int, experts: int, width: int) -> int:
    """Most parts of up to ``width`` eights that experts' pairs are cut into."""
    size = 8 * width
    return (pairs + min(pairs, experts) * (size - 1)) // size


def code_name(arch: str) -> str:
    """Name of the file of machine code for one architecture, such as ``sm_87``."""
    return f"kernels.{arch}.cubin"


def architectures_in(paths: Iterable[str]) -> tuple[str, ...]:
    """Architectures of GPUs that there is code for among some files; none where it is for a CPU."""
    found = (_CODE.fullmatch(path.rpartition("/")[2]) for path in paths)
    return tuple(match[1] for match in found if match)


def share_of(config: LlmConfig) -> int:
    """Heads with the same keys that one block of threads computes."""
    group = config.heads // config.kv_heads
    return max(n for n in range(1, _MOST_SHARED + 1) if group % n == 0)
