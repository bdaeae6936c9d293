"""Requests that pages of somebody else's make: names, addresses, sites."""

from __future__ import annotations

import socket

import pytest

from edgeinfer.origins import is_foreign, is_loopback, is_nearby, name_of


@pytest.mark.parametrize(
    ("host", "name"),
    [("a.example:80", "a.example"), ("[::1]:80", "::1"), ("Board", "board"), ("", "")],
)
def test_the_name_of_a_header(host: str, name: str) -> None:
    assert name_of(host) == name


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_this_machine_alone(host: str) -> None:
    assert is_loopback(host)
    assert is_nearby(host)


def test_names_that_can_be_bought_are_not_nearby() -> None:
    for name in ("192.168.0.7", "fe80::1", "board", "board.local", socket.getfqdn().lower()):
        assert is_nearby(name), name
        assert not is_loopback(name) or name == "localhost"
    for name in ("evil.example", "192.168.0.7.evil.example", "local.example"):
        assert not is_nearby(name)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_links_may_be_followed(site: str) -> None:
    assert not is_foreign(site, "navigate", "document")
    for mode, destination in (("no-cors", "image"), ("navigate", "iframe"), ("", "")):
        assert is_foreign(site, mode, destination)
        assert not is_foreign("same-origin", mode, destination)
        assert not is_foreign("", mode, destination)
