"""Keys that let requests in, compared in constant time."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Sequence

from edgeinfer.runtime.serve.http import RequestError


class Keys:
    """The keys of a server.

    Args:
        keys: any of them lets a request in; none asks for no key.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(self, authorization: bytes | None, api_key: bytes | None) -> None:
        """Let a request in.

        Args:
            authorization: its header of that name; browsers send a key as a password.
            api_key: its header ``x-api-key``.

        Raises:
            RequestError: 401, there is no key or another one.
        """
        if not self._digests:
            return
        digest = hashlib.sha256(_key(authorization or b"", api_key)).digest()
        # All are compared, so that time tells nothing.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise RequestError(401, "a key is needed: Authorization: Bearer KEY")


def _key(authorization: bytes, api_key: bytes | None) -> bytes:
    kind, _, given = authorization.partition(b" ")
    match kind.lower():
        case b"bearer":
            return given
        case b"basic":
            with contextlib.suppress(binascii.Error):
                return base64.b64decode(given, validate=True).partition(b":")[2]
    return api_key or b""
