"""Which requests to a port of ours a page of somebody else's made.

Browsers send what pages tell them, also to servers that only their machine or network reaches; a
page may point a name of its own at an address there, and then read what is answered.
"""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def name_of(host: str) -> str:
    """Return the name or address of a ``Host`` header, without its port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def is_nearby(name: str) -> bool:
    """Whether a name cannot be one that somebody far away has bought.

    Addresses, names without a dot and those of mDNS are none, nor is this machine's own.
    """
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return "." not in name or name.endswith(".local") or name == socket.getfqdn().lower()


def is_foreign(site: str, mode: str, destination: str) -> bool:
    """Whether a page of another site made a request that has no origin, but for a followed link.

    Args:
        site: ``Sec-Fetch-Site``; empty where it is missing, as of the other two.
        mode: ``Sec-Fetch-Mode``.
        destination: ``Sec-Fetch-Dest``.
    """
    is_followed = mode == "navigate" and destination == "document"
    return site in ("cross-site", "same-site") and not is_followed
