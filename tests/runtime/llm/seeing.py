"""The tiny model with random weights, with a tower that gives colours."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from edgeinfer.llm.vision import VisionInput
from edgeinfer.runtime.llm.bundle import BundledModel
from edgeinfer.runtime.llm.images import ImageReader
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from edgeinfer.types import Array
from tests.runtime.llm.test_llm import VOCAB, model
from tests.runtime.llm.texts import byte_level

IMAGE, ROWS = 366, 20
_HALF = (0.5, 0.5, 0.5)
ABOUT = VisionInput(IMAGE, "<image>", ROWS, 8, "stretch", 8, "bilinear", 1 / 255, _HALF, _HALF)


class ColourTower:
    """Gives rows that follow from the mean of each channel."""

    runs = closed = 0

    def __call__(self, tile: Array) -> Array:
        type(self).runs += 1
        mean = np.resize(tile.mean(axis=(2, 3)), (1, 1, 24)).astype(np.float32)
        return np.broadcast_to(mean, (1, ROWS, 24))

    def close(self) -> None:
        """Nothing is held."""
        type(self).closed += 1


@functools.cache
def _tokenizer() -> str:
    from tokenizers import Tokenizer

    made: Any = Tokenizer.from_str(byte_level())
    made.add_special_tokens(["<image>"])
    assert made.token_to_id("<image>") == IMAGE
    return str(made.to_str())


def seeing() -> BundledModel:
    """Return the model; its template takes texts alone."""
    plain = model()
    tokenizer = TextTokenizer(_tokenizer(), VOCAB, plain.generation.bos)
    tower: Any = ColourTower
    return replace(plain, tokenizer=tokenizer, pictures=ImageReader(ABOUT, tower))


def coloured(level: int) -> Array:
    """Return an image of one grey."""
    return np.full((8, 8, 3), level, np.uint8)
