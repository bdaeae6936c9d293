"""Keys that let requests in, compared in constant time, and what each of them may use."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.options import AccessKey, Rate, read_key


class Allowance:
    """What may be used of a rate; it comes back steadily.

    Args:
        rate: all of it is there at first.
        what: it is, in messages.
        clock: in seconds.
    """

    def __init__(self, rate: Rate, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._what, self._clock = rate, what, clock
        self._left, self._at = float(rate.count), clock()

    def check(self) -> None:
        """Raise where less than one is left.

        Raises:
            RequestError: 429, with the time until there is one.
        """
        now, rate = self._clock(), self._rate
        gained = (now - self._at) * rate.count / rate.seconds
        self._left, self._at = min(rate.count, self._left + gained), now
        if self._left < 1:
            wait_s = (1 - self._left) * rate.seconds / rate.count
            raise RequestError(
                429, f"this key may use {rate.count} {self._what} in {rate.seconds:g} s", wait_s
            )

    def use(self, count: int) -> None:
        """Take some; what is used up is known afterwards, so it may be more than there is."""
        self._left -= count


class Grant:
    """A key in use.

    Args:
        key: as it was given.
        is_alone: there is no other one.

    Attributes:
        is_alone: there is no other one, and nobody to share with.
        is_counted: whether it may be used so often in a time, and no more.
        name: Name of the key.
        models: names that it may use; empty for all.
        digest: Digest of the key.
        ahead: how far its requests may be put before others.
    """

    def __init__(self, key: AccessKey, *, is_alone: bool) -> None:
        self.name, self.models, self.is_alone = key.name, key.models, is_alone
        self.ahead: float = math.inf if is_alone else 0
        if key.priority is not None:
            self.ahead = key.priority
        self.digest = _digest(key.secret.encode())
        self._requests = None if key.requests is None else Allowance(key.requests, "requests")
        self.is_counted = key.requests is not None
        self._tokens = None if key.tokens is None else Allowance(key.tokens, "tokens")

    def count_request(self) -> None:
        """Count a request.

        Raises:
            RequestError: 429, there were too many.
        """
        if self._requests is not None:
            self._requests.check()
            self._requests.use(1)

    def check_ahead(self, distance: float) -> None:
        """Raise where a request may not be put so far before others.

        Raises:
            RequestError: 403.
        """
        if distance > self.ahead:
            raise RequestError(
                403, f"priority: this key may be at most {self.ahead:g} before others: priority=N"
            )

    def check_tokens(self) -> None:
        """Raise where no tokens are left.

        Raises:
            RequestError: 429.
        """
        if self._tokens is not None:
            self._tokens.check()

    def count_tokens(self, count: int) -> None:
        """Count tokens that were read or written."""
        if self._tokens is not None:
            self._tokens.use(count)


OPEN = frozenset({"/health", "/v2/health/live", "/v2/health/ready"})
"""Addresses that probes read without a key."""

GRANT: ContextVar[Grant | None] = ContextVar("grant", default=None)
"""Of the request that is answered; None where no key is required."""


def owner() -> bytes:
    """Return whose the request is that is answered: its key's digest, empty where none is asked."""
    grant = GRANT.get()
    return b"" if grant is None else grant.digest


def count_share(of: Counter[bytes], share: bytes, more: int) -> None:
    """Add to what a key has of several; nobody's is not counted, and a key that has nothing leaves.

    Args:
        of: by key; changed.
        share: the key, empty where it is nobody's.
        more: Number to add, below zero for what is given back.
    """
    if share:
        of[share] += more
        if not of[share]:
            del of[share]


def sharer() -> bytes:
    """Return the owner of the request that is answered; empty where nobody else has a share."""
    return share_of(GRANT.get())


def share_of(grant: Grant | None) -> bytes:
    """Likewise, of the key that let a request in."""
    return b"" if grant is None or grant.is_alone else grant.digest


def check_ahead(distance: float) -> None:
    """Raise where the key of the request may not put it so far before others.

    Raises:
        RequestError: 403.
    """
    grant = GRANT.get()
    if grant is not None:
        grant.check_ahead(distance)


class Keys:
    """The keys of a server.

    Args:
        keys: any of them lets a request in; none asks for no key.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._grants = [Grant(read_key(key), is_alone=len(keys) == 1) for key in keys]

    def check(self, authorization: bytes | None, api_key: bytes | None) -> None:
        """Let a request in, and count it; ``GRANT`` is its key from then on.

        Raises:
            RequestError: as ``find``; 429, there were too many requests.
        """
        found = self.find(authorization, api_key)
        if found is not None:
            found.count_request()
            GRANT.set(found)

    def find(self, authorization: bytes | None, api_key: bytes | None) -> Grant | None:
        """Return the key of a request; None where no key is required.

        Args:
            authorization: its header of that name; browsers send a key as a password.
            api_key: its header ``x-api-key``.

        Raises:
            RequestError: 401, there is no key or another one.
        """
        if not self._grants:
            return None
        digest = _digest(_key(authorization or b"", api_key))
        found = None
        # All are compared, so that time tells nothing.
        for grant in self._grants:
            if hmac.compare_digest(digest, grant.digest):
                found = grant
        if found is None:
            raise RequestError(401, "a key is needed: Authorization: Bearer KEY")
        return found


def _digest(key: bytes) -> bytes:
    # SHA-256 is OpenSSL's, of whose code requests would keep half a megabyte in memory.
    return hashlib.blake2b(key).digest()


def _key(authorization: bytes, api_key: bytes | None) -> bytes:
    kind, _, given = authorization.partition(b" ")
    match kind.lower():
        case b"bearer":
            return given
        case b"basic":
            with contextlib.suppress(binascii.Error):
                return base64.b64decode(given, validate=True).partition(b":")[2]
    return api_key or b""
