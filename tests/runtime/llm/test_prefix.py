from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.runtime.llm.blocks import PageAllocator
from edgeinfer.runtime.llm.executor import Floats
from edgeinfer.runtime.llm.prefix import Prefixes, extend, given_pages, root
from tests.runtime.llm.toy import ToyExecutor


def chain(tokens: list[int], start: bytes = b"s" * 16, page: int = 4) -> list[bytes]:
    keys: list[bytes] = []
    extend(keys, start, tokens, page)
    return keys


def test_hash_of_a_page_depends_on_everything_before_it() -> None:
    tokens = list(range(12))
    keys = chain(tokens)
    assert len(keys) == len(set(keys)) == 3
    for place in range(12):
        other = chain([*tokens[:place], 99, *tokens[place + 1 :]])
        assert other[: place // 4] == keys[: place // 4]
        assert not set(other[place // 4 :]) & set(keys)


def test_chain_grows_as_if_it_were_made_at_once() -> None:
    keys: list[bytes] = []
    for end in (0, 3, 4, 7, 9, 20):
        extend(keys, b"s" * 16, list(range(end)), 4)
    assert keys == chain(list(range(20)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("f", ""), ("g", "")),
        (("f", ""), ("f", "x")),
        (("f", "x", b""), ("f", "x", b"y")),
        (("fx", ""), ("f", "x")),
        (("f", "x", b"y"), ("f", "", b"xy")),
    ],
)
def test_roots_differ(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert root(*one) != root(*other)


def test_pages_behind_given_embeddings_depend_on_them() -> None:
    tokens, places = list(range(16)), [5, 6, 9]
    rows = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)

    def keys(rows: Floats, places: list[int]) -> list[bytes]:
        found: list[bytes] = []
        extend(found, b"s" * 16, tokens, 4, given_pages(rows, places, 4))
        return found

    plain, whole = chain(tokens), keys(rows, places)
    assert whole[0] == plain[0]
    assert not set(whole[1:]) & set(plain)
    assert keys(rows.copy(), places) == whole
    # The same rows elsewhere in the page, in another order, and with one bit changed at the end.
    assert keys(rows, [5, 7, 9])[1] != whole[1]
    assert keys(rows[[1, 0, 2]], places)[1] != whole[1]
    last = rows.copy()
    last.view(np.int32)[2, 1] ^= 1
    assert keys(last, places)[:2] == whole[:2]
    assert not set(keys(last, places)[2:]) & set(whole)


def test_equal_page_takes_the_place_of_a_second_one() -> None:
    executor = ToyExecutor(pages=4)
    blocks = PageAllocator(4)
    prefixes = Prefixes(blocks, executor, None)
    first, second = blocks.take(), blocks.take()
    assert prefixes.keep(first, b"k") == first
    assert prefixes.keep(second, b"k") == first
    assert blocks.uses(first) == 2
    assert blocks.uses(second) == 0
    assert blocks.problems() == []


def test_leading_pages_are_taken_and_no_others() -> None:
    executor = ToyExecutor(pages=8)
    blocks = PageAllocator(8)
    prefixes = Prefixes(blocks, executor, None)
    keys = chain(list(range(16)))
    pages = [blocks.take() for _ in keys]
    for place in (0, 1, 3):
        prefixes.keep(pages[place], keys[place])
    assert prefixes.known(keys) == 2
    assert prefixes.take(keys) == pages[:2]
    assert [blocks.uses(page) for page in pages] == [2, 2, 1, 1]


def test_promise_holds_until_it_is_kept_or_withdrawn() -> None:
    blocks = PageAllocator(8)
    prefixes = Prefixes(blocks, ToyExecutor(pages=8), None)
    prefixes.promise([b"a", b"b"], owner=1)
    assert prefixes.promised(b"a", owner=2)
    assert not prefixes.promised(b"a", owner=1)
    assert not prefixes.promised(b"c", owner=2)
    prefixes.keep(blocks.take(), b"a")
    assert not prefixes.promised(b"a", owner=2)
    prefixes.withdraw([b"a", b"b"], owner=2)
    assert prefixes.promised(b"b", owner=2)
    prefixes.withdraw([b"a", b"b"], owner=1)
    assert not prefixes.promised(b"b", owner=2)
