"""Errors in the form of the protocol that was spoken."""

from __future__ import annotations

from typing import Any

from edgeinfer.printable import as_line
from edgeinfer.runtime.serve.http import RequestError, status_of, to_json
from edgeinfer.runtime.serve.requestlog import LOG, MAX_PATH

MESSAGES = "/v1/messages"
"""Where Anthropic's API is."""

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: RequestError) -> dict[str, Any]:
    """Return an error in the protocol's form."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _KINDS.get(error.status, default)
    return {"type": "error", "error": {"type": kind, "message": error.text}}


def refusal(method: str, path: str, error: Exception) -> tuple[RequestError, bytes]:
    """Return status and body of the answer to an error; faults are logged."""
    known = status_of(error)
    if known.status >= 500 and not isinstance(error, RequestError):
        LOG.error("%s %s failed", method, as_line(path[:MAX_PATH]), exc_info=error)
    return known, to_json(error_of(path, known))


def error_of(path: str, error: RequestError) -> object:
    """Return the body that tells an error to who asked at a path."""
    if path.startswith(MESSAGES):
        return error_body(error)
    if not path.startswith("/v1"):
        return {"error": error.text}
    kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    default = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": error.text,
            "type": kind.get(error.status, default),
            "param": None,
            "code": error.status,
        }
    }
