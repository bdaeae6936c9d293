"""Versions compared as the reference implementation of PEP 440 does."""

import itertools

import pytest

from edgeinfer.versions import accepts, is_specifier, parse

pytest.importorskip("packaging", "26", reason="older ones differ in corners")
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

_VERSIONS = """
0 0.0 1 1.0 1.0.0 1.0.1 1.1 1.2 1.2.3 1.10 1.23.0 1.23.2 1.32.0 2 2.0a1 2.0b3 2.0rc1 2.0 2.0.post1
2.0.post2.dev3 2.0.dev1 2.0a1.dev2 1.0.dev0 1.0a0 1.0-1 1.0.post0 1.0+cpu 1.0+cu130 1.0+1 1.0+1.a
0.27.0.post1 0.27.0 1.0.0b3 2026.4.1 2025.3 2026.4.1-12345-abc 1!1.0 v1.0 1.0C1
1.0.ALPHA2 1.0preview
"""
_ASKED = """
0 1 1.0 1.0.0 1.0.1 1.2 1.10 1.23 2.0 2.0a1 2.0rc1 2.0.post1 2.0.dev1 1.0+cpu 0.27.0.post1 2025.3
1!1.0 1.0.dev0 1.0.post0
"""
VERSIONS, ASKED = _VERSIONS.split(), _ASKED.split()
HOW = ("==", "!=", "<=", ">=", "<", ">", "~=", "===")
NONE = (
    *("x", "1..2", ">", ">=", "=1", ">1.0.*", "==1.*.2", "~=1", ">=1.0+cpu", "1.0", ">= one"),
    *("==1.0+x.*", "==1.0.dev1.*", "~=1.0.*", "==", ">=1,x", "<1;2"),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_one_where_packaging_says_so(version: str) -> None:
    try:
        Version(version)
        known = True
    except InvalidVersion:
        known = False
    assert (parse(version) is not None) == known


def test_a_number_that_python_does_not_read_is_no_version() -> None:
    for text in ("9" * 5000, "1.0.post" + "9" * 5000, "1+" + "9" * 5000):
        assert parse(text) is None
        assert not is_specifier(f">={text}")


def test_their_order() -> None:
    valid = [v for v in VERSIONS if parse(v) is not None]
    for one, other in itertools.product(valid, valid):
        a, b = parse(one), parse(other)
        assert a is not None
        assert b is not None
        assert (a.key < b.key) == (Version(one) < Version(other)), (one, other)
        assert (a.key == b.key) == (Version(one) == Version(other)), (one, other)


@pytest.mark.parametrize("how", HOW)
def test_what_is_accepted(how: str) -> None:
    stars = [f"{v}.*" for v in ("1", "1.0", "1.2", "2.0", "0.27")] if how in ("==", "!=") else []
    for wanted in [*ASKED, *stars]:
        text = how + wanted
        try:
            known = SpecifierSet(text)
        except InvalidSpecifier:
            assert not is_specifier(text), text
            continue
        assert is_specifier(text), text
        for version in VERSIONS:
            if parse(version) is None:
                continue
            expected = known.contains(version, prereleases=True)
            assert accepts(text, version) == expected, (text, version)


def test_several_and_none() -> None:
    assert accepts("", "1.0")
    assert accepts("", None)
    assert accepts(" >=1.23, !=1.30 ,<2", "1.32.0")
    assert not accepts(">=1.23,!=1.32", "1.32.0")
    assert not accepts(">=1", None)
    assert not accepts(">=1", "odd-version")


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_specifier(text: str) -> None:
    with pytest.raises(InvalidSpecifier):
        SpecifierSet(text)
    assert not is_specifier(text)
    assert not accepts(text, "1.0")
