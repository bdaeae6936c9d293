"""Run a bundle's functions that nobody has run here before, in a process of its own."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.backends.process.trial import answer
from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.runtime.pipelines.image_preparation import ImagesByCode
from edgeinfer.runtime.pipelines.spectra import spectra
from edgeinfer.types import ImageInput, SpectrogramInput


def _attempt(asked: tuple[str, tuple[SpectrogramInput, ...]]) -> None:
    library, sounds = asked
    functions = Functions(Path(library))
    for sound in sounds:
        # Whether the numbers are right is asked when the pipeline is opened.
        spectra(functions, "", sound)
    if not functions.has("across_1"):
        return
    for color in ("RGB", "GRAY"):
        for antialias in (True, False):
            record = ImageInput(32, 32, color=color, antialias=antialias)
            ImagesByCode(functions, record, "float32").check()


if __name__ == "__main__":
    answer(_attempt)
