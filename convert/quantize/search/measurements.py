"""Measurements of searches that are kept in the cache, so that one that was stopped goes on.

A conversion that works in a process of its own may write nothing there: it tells the one that waits
for it, which writes what has the form of measurements and nothing else.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Any

from edgeinfer.backends.process import channel
from edgeinfer.bounded import parse_json, read_bounded
from edgeinfer.bundle.cache import readable_folder, writable_folder

_FOLDER = "search"
_KEY = re.compile(r"[0-9a-f]{32}")
_LARGEST = 8 << 20
"""Bytes of a file; a search of thousands of candidates takes a tenth of them."""


def read(key: str) -> dict[str, Any]:
    """Return what is known of a search; a damaged file is as none."""
    folder = readable_folder(_FOLDER)
    if folder is None:
        return {}
    try:
        known = parse_json(read_bounded(folder / f"{key}.json", _LARGEST))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def write(key: str, known: dict[str, Any]) -> None:
    """Keep what is known of a search, here or by the process that waits for this one."""
    text = json.dumps(known)
    line = channel.line()
    if line is None:
        keep(key, text)
    else:
        line.tell("measured", key, text)


def keep(key: str, text: str) -> None:
    """Write a file of measurements as a whole; what is none is not written."""
    if not _KEY.fullmatch(key) or len(text) > _LARGEST:
        return
    # A cache that cannot be written costs a stopped search its measurements, nothing else.
    with suppress(OSError):
        place = writable_folder(_FOLDER) / f"{key}.json"
        scratch = place.with_name(f"{place.name}.{os.getpid()}")
        scratch.write_text(text, "utf-8")
        scratch.replace(place)
