"""The contract between an engine, which decides what runs, and what computes logits.

An executor keeps nothing but its cache of keys and values. The engine owns page numbers, lengths
and tables: a rejected draft is a smaller length, a fork is a copied row of the table, and
cancelling frees page numbers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgeinfer.records import dataclass

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

PAGE = 16
"""Tokens of a page."""


@dataclass(slots=True)
class StepBatch:
    """The tokens of one step, of any number of sequences, decoding and reading prompts alike.

    It is not frozen: that takes longer to make, and every step has one.
    Tokens of one sequence stand next to each other in the order of their positions.

    Attributes:
        tokens: (tokens,) ids; 1 to ``Executor.max_tokens`` of them.
        positions: (tokens,) position of each in its sequence, from 0.
        owner: (tokens,) the row of ``table`` of its sequence.
        table: (sequences, pages) page numbers in the order of positions; -1 pads, and stands for a
            page that no layer's window reaches.
        rows: (outputs,) indices into ``tokens`` whose logits are wanted, ascending; may be empty.
        adapter: (tokens,) index into ``Executor.adapters``, -1 for none; None for none anywhere.
        embedded: (given,) indices into ``tokens`` whose embeddings are given, ascending; None for
            none.
        embeddings: (given, hidden) float32, in the place of looked-up ones.
    """

    tokens: Ints
    positions: Ints
    owner: Ints
    table: Ints
    rows: Ints
    adapter: Ints | None = None
    embedded: Ints | None = None
    embeddings: Floats | None = None


class Executor(Protocol):
    """Computes logits of a batch of tokens over a paged cache.

    What it promises:

    * The bits of a row of logits, and of what is written to the cache, depend on the sequence's own
      tokens, adapter and embeddings alone: not on what else is in the batch, on how the sequence
      was cut into steps, on which pages hold it, nor on tiles and threads.
    * A step writes the cache at (``table[owner]``, position) only and reads it at positions up to
      the token's own, so whatever stands behind the end of a sequence never matters.

    Attributes:
        vocab: columns of the logits.
        hidden: elements of an embedding.
        context: positions of a sequence, the largest number of tokens it may have.
        page: tokens of a page.
        pages: number of pages of the cache; their numbers are 0 to ``pages - 1``.
        page_bytes: bytes of one page over all layers, as ``read_page`` gives them.
        layers: number of layers.
        max_tokens: the largest number of tokens in a step.
        max_rows: the largest number of rows of logits in a step.
        max_sequences: the largest number of rows of a table.
        window: positions that the widest layer looks back, its own included; 0 where some layer
            looks back to the start.
        adapters: names of the low-rank adapters, in the order of their indices.
        fingerprint: Fingerprint of all that the cache's bits depend on besides the tokens: weights,
            adapters, kernels, the cache's type and layout. Pages of one fingerprint may be kept on
            disk and given to another executor with the same one.
        best: Tokens with the largest logit of the last step's rows, of equals the lowest, -1 where
            one is not finite; None where nobody has looked.
    """

    vocab: int
    hidden: int
    context: int
    page: int
    pages: int
    page_bytes: int
    layers: int
    max_tokens: int
    max_rows: int
    max_sequences: int
    window: int
    adapters: tuple[str, ...]
    fingerprint: str
    best: Ints | None

    def step(self, batch: StepBatch) -> Floats:
        """Compute the logits of the wanted rows and append keys and values to the cache.

        Returns:
            (outputs, vocab) float32; a view that is valid until the next step.
        """
        ...

    def states(self, batch: StepBatch) -> Floats:
        """Like ``step``, but return what goes into the head.

        Returns:
            (outputs, hidden) float32, normed as the last block's result is.
        """
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of all layers, before a forked sequence writes to its own."""
        ...

    def read_page(self, page: int, into: Bytes) -> None:
        """Copy a page of all layers into (page_bytes,) uint8."""
        ...

    def write_page(self, page: int, data: Bytes) -> None:
        """Fill a page of all layers with what ``read_page`` gave."""
        ...

    def close(self) -> None:
        """Release weights, cache and threads; may be called twice."""
        ...
