"""Keys that let requests in, compared in constant time."""

from __future__ import annotations

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
            authorization: its header of that name.
            api_key: its header ``x-api-key``.

        Raises:
            RequestError: 401, there is no key or another one.
        """
        if not self._digests:
            return
        given = authorization or b""
        key = given[7:] if given[:7].lower() == b"bearer " else api_key or b""
        digest = hashlib.sha256(key).digest()
        # All are compared, so that time tells nothing.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise RequestError(401, "a key is needed: Authorization: Bearer KEY")
