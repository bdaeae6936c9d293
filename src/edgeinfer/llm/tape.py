"""What a step consists of for one machine: phases over packed weights, and their kernels.

``tape.json`` names arrays by text: ``w:<name>`` is one of ``weights``, anything else an array of
the executor, with ``@<n>`` behind it from column ``n`` on. The executor's arrays are

========== ======================== ==========================================================
``x``      (tokens, hidden)         what blocks add to
``t``      (tokens, hidden)         what is normed before it is added
``qkv``    (tokens, q + k + v)      queries, keys and values
``att``    (tokens, heads * size)   what attention gives
``h``      (tokens, ffn)            inside feed-forward parts
``router`` (tokens, experts)        scores, with rows that fill the last run up
``chosen`` (tokens * used)          experts of each token; ``shares`` likewise
``he``     (tokens * used, ffn)     inside experts
``order``  (rows)                   pairs of tokens and experts by expert; ``places`` the reverse
``jobs``   (jobs, 2)                an expert, and the first of its rows
``late``   (4)                      counts that are known when the experts are
``xe``     (rows, hidden)           what experts give; ``p*`` what they are given
``xo``     (outputs, hidden)        rows whose logits are wanted
``logits`` (outputs, rows)          with rows that fill the last run up
``low``    (tokens, ...)            what adapters' first matrices give
``more``   (tokens, 2 * ffn)        what adapters add to gates and inputs
``n<K>``   (tokens, K)              a normed row
``r<K>.*`` (tokens, ...)            the same in 8 bits: words, scales, starts, sums
========== ======================== ==========================================================

and the arrays of the batch: ``tokens``, ``positions``, ``owner``, ``table``, ``rows``, ``tiles1``,
``tiles2``, ``adapter``, ``cos<i>`` and ``sin<i>`` of rope ``i``; ``cache`` stands for a layer's,
``span`` for a thread's own. ``n<K>`` and ``r<K>`` are each thread's own where one token alone is
computed, so that nobody waits for its rounding.
"""

from __future__ import annotations

import json
from typing import Literal

from edgeinfer.bundle.codec import decode, encode
from edgeinfer.bundle.documents import parsed
from edgeinfer.errors import BundleError
from edgeinfer.records import dataclass

FILE_NAME = "tape.json"
WEIGHTS_NAME = "weights.bin"
LIBRARY_NAME = "kernels.so"

VERSION = 2

ALIGNMENT = 64
"""Bytes that arrays begin at a multiple of."""

Domain = Literal["tokens", "outputs", "step", "pairs"]
"""What counts items: all tokens of a step, those whose logits are wanted, or a step, which is one;
on GPUs also pairs of a token and one of its experts."""


@dataclass(frozen=True, slots=True)
class Array:
    """A packed array in ``weights.bin``."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Argument:
    """What a kernel takes, as it is declared there."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel and the arrays that it is given."""

    kernel: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """A phase whose items are rows, or ``each`` parts of every row."""

    call: Call
    domain: Domain
    each: int = 1
    kind: Literal["rows"] = "rows"


@dataclass(frozen=True, slots=True)
class Adapted:
    """What a product needs where tokens have low-rank adapters.

    Attributes:
        parts: rows of each matrix that it multiplies, by name and one below the other.
        columns: Columns of each.
        source: array of the tokens, in float32.
        target: array that adapters add to.
        stride: elements of a row of it.
        calls: where they are added before the product and it adds them to its own sums, by width
            like those of the product; empty where they are added behind it.
        items: Items of each of them.
    """

    parts: dict[str, int]
    columns: int
    source: str
    target: str
    stride: int
    calls: dict[str, Call]
    items: dict[str, int]


@dataclass(frozen=True, slots=True)
class Products:
    """A phase that multiplies a matrix.

    Attributes:
        calls: by the number of tokens that a kernel takes at once.
        items: Items of each of them.
        domain: that is multiplied.
        before: makes what it takes; None where the phase before it has.
        shared: others have made it already where several tokens are computed.
        adapted: what adapters change; None where they change nothing.
    """

    calls: dict[str, Call]
    items: dict[str, int]
    domain: Domain
    before: Call | None = None
    shared: bool = False
    adapted: Adapted | None = None
    kind: Literal["products"] = "products"


@dataclass(frozen=True, slots=True)
class Attention:
    """The phases of a layer's attention.

    Attributes:
        layer: whose cache it is.
        fused: for batches in which each sequence has one token, by the cache's type.
        turn: otherwise, what comes first.
        tiles: and then, by tokens of a tile, ``<type> <tokens>``.
    """

    layer: int
    fused: dict[str, Call]
    turn: dict[str, Call]
    tiles: dict[str, Call]
    kind: Literal["attention"] = "attention"


@dataclass(frozen=True, slots=True)
class Counted:
    """A phase whose items are counted by one before it.

    Attributes:
        call: kernel and arrays.
        late: which number of the executor's array ``late`` it has as many items as.
        chunk: items that a thread takes at once.
    """

    call: Call
    late: int
    chunk: int
    kind: Literal["counted"] = "counted"


@dataclass(frozen=True, slots=True)
class Routed:
    """The phases of a layer's experts.

    Attributes:
        alone: where every pair of a token and an expert is worked on by itself.
        listed: where the pairs of an expert lie together.
        rows: that are worked on at once there.
    """

    alone: tuple[Rows, ...]
    listed: tuple[Rows | Counted, ...]
    rows: int
    kind: Literal["routed"] = "routed"


Phase = Rows | Products | Attention | Routed


@dataclass(frozen=True, slots=True)
class PackedLowRank:
    """What an adapter adds to a product, ``scale * B A x``.

    Attributes:
        a: name of the packed ``A``; ``b`` likewise.
        rank: rows of ``A``, with those that fill the last block up.
        scale: Factor, with what the packed numbers are too large by.
    """

    a: str
    b: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter.

    Attributes:
        name: that requests have for it.
        matrices: its parts, by the names of the matrices that they are added to.
    """

    name: str
    matrices: dict[str, PackedLowRank]


@dataclass(frozen=True, slots=True)
class Tape:
    """A step.

    Attributes:
        version: Version of this form.
        machine: that its code is for.
        side: rows of a matrix that lie side by side.
        caches: types of caches that there is code for, the first one by default.
        columns: sizes of rows that are rounded.
        weights: packed, by name.
        kernels: arguments of each.
        phases: in order.
        digest: Digest of weights and code.
        adapters: Adapters of the model, in the order of their numbers.
    """

    version: int
    machine: str
    side: int
    caches: tuple[str, ...]
    columns: tuple[int, ...]
    weights: dict[str, Array]
    kernels: dict[str, tuple[Argument, ...]]
    phases: tuple[Phase, ...]
    digest: str = ""
    adapters: tuple[Adapter, ...] = ()

    def to_json(self) -> str:
        """Return the text of ``tape.json``."""
        return json.dumps(encode(self), separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Tape:
        """Read the text of ``tape.json`` strictly.

        Raises:
            BundleError: it is no JSON, of another version, or a key is missing or wrong.
        """
        data = parsed(text, FILE_NAME)
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            hint = "convert the model again, or update edgeinfer here"
            raise BundleError(f"{FILE_NAME}: version {version!r} is not {VERSION}; {hint}")
        tape, found = decode(cls, data)
        if tape is None:
            raise BundleError(f"{FILE_NAME}: " + "; ".join(found[:12]))
        return tape
