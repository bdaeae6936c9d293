"""What commands read of ``report.json``, and whether a file has it in that form.

A report is for people, and has more in it with each version; what is read of it is held to a form,
as whoever made the bundle wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgeinfer.errors import BundleError

NUMBER = (int, float)

_ROW = {
    "node": str,
    "op": str,
    "sqnr_db": (*NUMBER, str, None),
    "max_rel": (*NUMBER, None),
    "us": (*NUMBER, None),
    "step": str,
}

FORM: Mapping[str, Any] = {
    "variants": [{"id": str, "engines": [{"verdict": str}]}],
    "layers": {
        "*": {
            "engine": str,
            "device": str,
            "vector": int,
            "clock": str,
            "rows": [_ROW],
            "notes": [str],
            "own": {"*": {"count": int, "us": NUMBER}},
        }
    },
}
"""By key, where the key is there: a type or several, of lists what each item is, of objects what
each key is that they must have; ``*`` stands for all keys."""


def checked(report: object, name: str) -> dict[str, Any]:
    """Return a report that has the form.

    Args:
        report: as JSON has it.
        name: for messages.

    Raises:
        BundleError: it has another one; says what is wrong first.
    """
    if not isinstance(report, dict):
        raise BundleError(f"{name}: expected a JSON object")
    for key, form in FORM.items():
        if key in report and (problem := next(_misfits(key, report[key], form), None)):
            raise BundleError(f"{name}: {problem}")
    return report


def _misfits(where: str, value: Any, form: Any) -> Iterator[str]:
    if isinstance(form, list):
        if not isinstance(value, list):
            yield f"{where}: expected a list, received {_kind(value)}"
            return
        for number, item in enumerate(value):
            yield from _misfits(f"{where}[{number}]", item, form[0])
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            yield f"{where}: expected an object, received {_kind(value)}"
            return
        forms = dict.fromkeys(value, form["*"]) if "*" in form else form
        for key, each in forms.items():
            if key in value:
                yield from _misfits(f"{where}.{key}", value[key], each)
            else:
                yield f"{where}: lacks {key!r}"
    else:
        kinds = form if isinstance(form, tuple) else (form,)
        named = tuple(kind for kind in kinds if kind is not None)
        is_none = value is None and None in kinds
        if not is_none and (not isinstance(value, named) or isinstance(value, bool)):
            expected = " or ".join(sorted({_NAMES[kind] for kind in kinds}))
            yield f"{where}: expected {expected}, received {_kind(value)}"


_NAMES: Mapping[Any, str] = {str: "a text", int: "a number", float: "a number", None: "null"}


def _kind(value: Any) -> str:
    kinds: Mapping[Any, str] = {**_NAMES, bool: "a truth value", list: "a list", dict: "an object"}
    return kinds[None if value is None else type(value)]
