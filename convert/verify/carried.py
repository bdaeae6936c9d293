"""Which test vectors travel in the bundle: all that the user gave to check with, of others a share.

A calibration set is there to find ranges; a few of its samples tell another machine as much.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edgeinfer.convert.verify.answers import Answer, Vector

LEAST_BYTES = 2 << 20
"""What made-up vectors may take however small the artifacts are."""

SHARE = 0.25
"""Of the artifacts' bytes, that made-up vectors may take beyond that."""


def carried(
    vectors: Sequence[Vector],
    answers: Sequence[Answer],
    artifact_bytes: int,
    hardest: Collection[int] = (),
) -> list[int]:
    """Return the places of the vectors that go into the bundle, in order.

    Every one was checked here, and the smaller ones say as much about another machine: where sizes
    are open, made-up pictures of many sizes would outweigh a small model. The first one stays: it
    is of the size that the model was made for, and what a device takes its times with.

    Args:
        vectors: all.
        answers: to them, in their order.
        artifact_bytes: of all variants.
        hardest: places of vectors that came closest to a budget, or needed a wider one: they stay,
            or the device would see an easier test than the one that was passed here.
    """
    left = max(LEAST_BYTES, int(SHARE * artifact_bytes))
    given = [i for i, v in enumerate(vectors) if v.origin.startswith("user:")]
    made = [i for i in range(len(vectors)) if i not in given]
    # Samples of a calibration set say more than what was made up.
    made.sort(key=lambda i: not vectors[i].origin.startswith("calibration:"))
    kept = {*given, *hardest, *(made[:1] if not given else ())}
    sizes = {i: _bytes(vectors[i], answers[i]) for i in made}
    left -= sum(sizes[i] for i in kept if i in sizes)
    for i in made:
        if i not in kept and sizes[i] <= left:
            kept.add(i)
            left -= sizes[i]
    return sorted(kept)


def size_of(kept: Sequence[tuple[Vector, Answer]]) -> int:
    """Bytes of vectors and the answers to them."""
    return sum(_bytes(vector, answer) for vector, answer in kept)


def _bytes(vector: Vector, answer: Answer) -> int:
    return sum(a.nbytes for a in (*vector.feeds.values(), *answer.outputs.values()))
