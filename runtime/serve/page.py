"""The page at ``/``: a form to try each model, and plots of what the server does.

Its files are in ``static``, as ``release/page.py`` built them; they load nothing from elsewhere and
run no script that is not in a file, which the headers hold browsers to.
"""

from __future__ import annotations

from importlib.resources import files

from edgeinfer.runtime.serve.http import Header, Send, answer

_CSP = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    b"media-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'"
)
_SAFE: tuple[Header, ...] = (
    (b"content-security-policy", _CSP),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/licences.txt": ("licences.txt", b"text/plain; charset=utf-8"),
}

ASK_FOR_KEY: Header = (b"www-authenticate", b'Basic realm="edgeinfer", charset="UTF-8"')
"""Lets a browser ask for a key, as the password, when it opens the page."""


def is_page(path: str) -> bool:
    """Whether an address is one of the page's files."""
    return path in _FILES


async def answer_page(path: str, send: Send) -> None:
    """Send one of the page's files."""
    name, kind = _FILES[path]
    content = files(__package__).joinpath("static", name).read_bytes()
    await answer(send, 200, content, ((b"content-type", kind), *_SAFE))
