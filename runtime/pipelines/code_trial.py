"""Run a bundle's functions that nobody has run here before, in a process of its own."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.backends.plain_functions import Functions
from edgeinfer.backends.trial import answer
from edgeinfer.runtime.pipelines.pictures import ByCode
from edgeinfer.types import ImageInput


def _attempt(library: str) -> None:
    functions = Functions(Path(library))
    for color in ("RGB", "GRAY"):
        for antialias in (True, False):
            record = ImageInput(32, 32, color=color, antialias=antialias)
            ByCode(functions, record, "float32").check()


if __name__ == "__main__":
    answer(_attempt)
