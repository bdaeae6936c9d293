"""JSON files of a bundle that hold one record each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from edgeinfer.bounded import parse_json
from edgeinfer.bundle.codec import decode, encode
from edgeinfer.errors import BundleError


class Checkable(Protocol):
    """A record that can list what makes no sense in it."""

    def problems(self) -> Iterable[str]:
        """List what makes no sense."""
        ...


C = TypeVar("C", bound=Checkable)


def text_of(record: object) -> str:
    """Return the text of a record's file."""
    return json.dumps(encode(record), indent=1, allow_nan=False) + "\n"


def parsed(text: str | bytes, name: str) -> Any:
    """Return the data of the file ``name``.

    Raises:
        BundleError: it is no JSON.
    """
    try:
        return parse_json(text)
    except ValueError as e:
        raise BundleError(f"{name}: {e}") from e


def read(cls: type[C], text: str | bytes, name: str) -> C:
    """Read the record of the file ``name`` strictly.

    Raises:
        BundleError: it is no JSON, or a key is unknown, missing or wrong; lists everything.
    """
    record, found = decode(cls, parsed(text, name))
    if record is not None:
        found = list(record.problems())
    if record is None or found:
        raise BundleError(f"{name}: " + "; ".join(found))
    return record
