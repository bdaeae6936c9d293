"""Which test vectors travel in the bundle: all that the user gave to check with, of others a share.

A calibration set is there to find ranges; a few of its samples tell another machine as much. Of
outputs that are large compared with the model a part travels, whosever vector it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from edgeinfer.convert.verify.answers import Answer, Vector
from edgeinfer.parts import LEAST, part
from edgeinfer.types import Array

LEAST_BYTES, ROOM_BYTES = 256 << 10, 2 << 20
"""What made-up vectors may take however small the artifacts are, and up to which they may take as
much as the largest of these."""

SHARE = 0.25
"""Of the artifacts' bytes, that made-up vectors may take beyond that."""

_OF_ROOM = 8
"""A part of the room, that one output of one vector may take."""


def room_for(artifact_bytes: Sequence[int]) -> int:
    """Return how many bytes made-up vectors may take next to artifacts of these sizes."""
    largest = max(artifact_bytes, default=0)
    return max(LEAST_BYTES, min(ROOM_BYTES, largest), int(SHARE * sum(artifact_bytes)))


def fitting(answer: Answer, room: int) -> Answer:
    """Return an answer with parts of the outputs that are too large for the room of all vectors."""
    outputs = {
        name: array if isinstance(array, list) else part(array, _most(array, room))
        for name, array in answer.outputs.items()
    }
    return replace(answer, outputs=outputs)


def _most(array: Array, room: int) -> int:
    return max(LEAST, room // _OF_ROOM // max(1, array.dtype.itemsize))


def carried(
    vectors: Sequence[Vector],
    answers: Sequence[Answer],
    room: int,
    hardest: Collection[int] = (),
) -> list[int]:
    """Return the positions of the vectors that go into the bundle, in order.

    Every one was checked here, and the smaller ones say as much about another machine: where sizes
    are open, made-up images of many sizes would outweigh a small model. The first one stays: it
    is of the size that the model was made for, and what a device takes its times with. One of the
    hardest with these sizes serves as well where there is no room for both.

    Args:
        vectors: all.
        answers: to them, in their order.
        room: bytes that made-up ones may take.
        hardest: indices of vectors that came closest to a budget, or needed a wider one: they stay,
            or the device would see an easier test than the one that was passed here.
    """
    left = room
    given = [i for i, v in enumerate(vectors) if v.origin.startswith("user:")]
    made = [i for i in range(len(vectors)) if i not in given]
    # Samples of a calibration set say more than what was made up.
    made.sort(key=lambda i: not vectors[i].origin.startswith("calibration:"))
    sizes = {i: _bytes(vectors[i], answers[i]) for i in made}
    kept = {*given, *hardest}
    if made and not given:
        like = [i for i in hardest if _shapes(vectors[i]) == _shapes(vectors[made[0]])]
        if not like or sum(sizes.get(i, 0) for i in {*kept, made[0]}) <= left:
            kept.add(made[0])
    left -= sum(sizes[i] for i in kept if i in sizes)
    for i in made:
        if i not in kept and sizes[i] <= left:
            kept.add(i)
            left -= sizes[i]
    return sorted(kept)


def _shapes(vector: Vector) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(array) for name, array in vector.feeds.items()}


def size_of(kept: Sequence[tuple[Vector, Answer]]) -> int:
    """Bytes of vectors and the answers to them."""
    return sum(_bytes(vector, answer) for vector, answer in kept)


def _bytes(vector: Vector, answer: Answer) -> int:
    return sum(a.nbytes for a in (*vector.feeds.values(), *answer.outputs.values()))
