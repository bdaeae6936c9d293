"""Which pages in browsers may ask: that of this server, and those of origins that are listed.

A browser sends what any page tells it to, also to servers that only its machine reaches, and
withholds the answer alone. Keys that a browser keeps for this server's page would go along. So
requests that another site's page made are refused before they do anything.
"""

from __future__ import annotations

import functools

from edgeinfer.origins import is_foreign, is_loopback, name_of
from edgeinfer.runtime.serve.http import Header, RequestError, Scope, header
from edgeinfer.runtime.serve.options import ServeOptions


class Origins:
    """Pages that may ask.

    Args:
        options: Options of the server.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._allowed = frozenset(options.cors)
        # A name that somebody points at this machine makes a page of his one of this server.
        self._is_local = not (options.keys or options.insecure) and is_loopback(options.host)

    def check(self, scope: Scope) -> None:
        """Let a request in.

        Raises:
            RequestError: 403, a page of another origin made it, or it came by another name than
                one of this machine where no key is required.
        """
        host = (header(scope, b"host") or b"").decode("latin-1")
        if self._is_local and host and not _is_here(host):
            raise RequestError(
                403, f"{host!r} is no name of this machine alone: give --keys, or --insecure"
            )
        origin = header(scope, b"origin")
        if origin is None:
            _check_site(scope)
            return
        text = origin.decode("latin-1")
        if text not in self._allowed and text.partition("://")[2] != host:
            raise RequestError(403, f"pages of {text} may not ask; --cors lets them")

    def headers(self, scope: Scope) -> tuple[Header, ...]:
        """Return what lets a page of an allowed origin read the answer."""
        origin = header(scope, b"origin")
        if origin is None or origin.decode("latin-1") not in self._allowed:
            return ()
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"vary", b"origin"),
        )


def _check_site(scope: Scope) -> None:
    """Refuse what a page of another site made without an origin: images, forms of GET, frames.

    A link to this server's page may be followed.

    Raises:
        RequestError: 403.
    """
    site = header(scope, b"sec-fetch-site")
    if site is None:
        return
    names = (b"sec-fetch-mode", b"sec-fetch-dest")
    mode, destination = ((header(scope, name) or b"").decode("latin-1") for name in names)
    place = site.decode("latin-1")
    if is_foreign(place, mode, destination if scope["path"] == "/" else ""):
        raise RequestError(403, "pages of other sites may not ask; --cors lets them")


@functools.lru_cache(64)
def _is_here(host: str) -> bool:
    return is_loopback(name_of(host))
