"""Images, recordings and array files to the tensors that a model takes, and results back.

Each function's module is imported when it is first requested: a conversion describes its inputs
and reads none. Pillow, soundfile and soxr are imported only when an image or recording is read.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeinfer.media.arrays import read_arrays, write_arrays
    from edgeinfer.media.audio import load_audio
    from edgeinfer.media.description import Description, parse_description
    from edgeinfer.media.feeds import calls_for, feeds_for, has_batch
    from edgeinfer.media.image import load_image
    from edgeinfer.media.preprocessing import parse_preprocessing, read_labels

__all__ = [
    "Description",
    "calls_for",
    "feeds_for",
    "has_batch",
    "load_audio",
    "load_image",
    "parse_description",
    "parse_preprocessing",
    "read_arrays",
    "read_labels",
    "write_arrays",
]

_MODULES = {
    "Description": "description",
    "calls_for": "feeds",
    "feeds_for": "feeds",
    "has_batch": "feeds",
    "load_audio": "audio",
    "load_image": "image",
    "parse_description": "description",
    "parse_preprocessing": "preprocessing",
    "read_arrays": "arrays",
    "read_labels": "preprocessing",
    "write_arrays": "arrays",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
