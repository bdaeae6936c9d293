import random

import pytest

from edgeinfer.errors import OutOfPagesError
from edgeinfer.runtime.llm.blocks import PageAllocator


def test_pages_are_given_out_once() -> None:
    blocks = PageAllocator(3)
    assert sorted(blocks.take() for _ in range(3)) == [0, 1, 2]
    with pytest.raises(OutOfPagesError, match="all 3 pages"):
        blocks.take()
    blocks.release(1)
    assert blocks.take() == 1


def test_kept_page_comes_back_by_its_label_until_it_is_needed() -> None:
    blocks = PageAllocator(2)
    first, second = blocks.take(), blocks.take()
    blocks.label(first, b"x")
    blocks.label(second, b"y")
    blocks.release(first)
    blocks.release(second)
    assert (blocks.available, blocks.kept) == (2, 2)
    assert blocks.find(b"x") == first
    blocks.share(first)
    blocks.release(first)
    # "y" is the longest unused now.
    assert blocks.take() == second
    assert blocks.find(b"y") is None
    assert blocks.find(b"x") == first
    assert blocks.evicted == 1


def test_too_many_releases_are_a_bug() -> None:
    blocks = PageAllocator(1)
    page = blocks.take()
    blocks.release(page)
    with pytest.raises(ValueError, match="released more often"):
        blocks.release(page)


def test_label_is_given_once() -> None:
    blocks = PageAllocator(2)
    first, second = blocks.take(), blocks.take()
    blocks.label(first, b"x")
    for page, label in ((first, b"y"), (second, b"x")):
        with pytest.raises(ValueError, match="it has a label, or another"):
            blocks.label(page, label)


@pytest.mark.parametrize("seed", range(5))
def test_state_is_sound_after_anything(seed: int) -> None:
    rng = random.Random(seed)
    blocks = PageAllocator(12)
    held: list[int] = []
    for number in range(3000):
        choice = rng.random()
        if choice < 0.4 and blocks.available:
            page = blocks.take()
            assert page not in held
            held.append(page)
        elif choice < 0.7 and held:
            blocks.release(held.pop(rng.randrange(len(held))))
        elif choice < 0.8 and held:
            page = rng.choice(held)
            if not blocks.labelled(page):
                blocks.label(page, str(number).encode())
        elif choice < 0.95 and blocks.labels():
            label, page = rng.choice(blocks.labels())
            assert blocks.find(label) == page
            blocks.share(page)
            held.append(page)
        elif choice > 0.995:
            blocks.forget()
        assert blocks.problems() == []
        assert all(blocks.uses(page) == held.count(page) for page in range(12))
