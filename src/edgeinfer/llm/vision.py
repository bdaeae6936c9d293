"""How images stand in prompts: ``vision/images.json`` of a bundle.

Next to it in ``vision/tower`` lies the vision tower with its projector, an ordinary bundle: one
input, a tile of an image, (1, 3, side, side); one output, its embeddings, (1, rows, hidden).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

from edgeinfer.bundle import documents
from edgeinfer.records import dataclass

FOLDER, TOWER = "vision", "tower"
FILE_NAME = f"{FOLDER}/images.json"

Resize = Literal["stretch", "crop", "tiles", "whole"]
Filter = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
"""Filters of Pillow, by their numbers there."""

FILTERS: tuple[str, ...] = get_args(Filter)

MOST_SIDE = 4096
"""Pixels of a side on the way, as in the processors of Idefics 3 and SmolVLM."""

_MOST_ROWS, _MOST_TOKENS = 1 << 14, 1 << 16
"""Of a tile, and of an image."""

_MOST_TILES, _MOST_PIXELS = 1 << 10, 20_000_000
"""Of an image, which may have a side of ``MOST_SIDE``."""

_LONGEST_PLACE = 256
"""Letters."""

_AROUND, _WHOLE, _PART = "<fake_token_around_image>", "<global-img>", "<row_{}_col_{}>"
"""Texts around tiles, of Idefics 3 and SmolVLM."""


@dataclass(frozen=True, slots=True)
class VisionInput:
    """What becomes of an image before the vision tower, and what stands for it in a prompt.

    Attributes:
        token: Token in the place of each embedding.
        place: Text of that token; a prompt has one where an image is.
        rows: Number of embeddings of a tile.
        side: Pixels of a tile, in both directions.
        resize: Method: ``stretch`` brings the image to one tile, ``crop`` its shorter side to
            ``pixels`` and cuts the middle out, ``tiles`` its longer side to ``pixels`` and then
            both to multiples of a tile, and adds the whole image as the last tile; ``whole``
            brings it to ``pixels`` likewise, then to one tile.
        pixels: see ``resize``.
        filter: Filter of Pillow.
        scale: Factor on pixel values 0..255.
        mean: subtracted afterwards, by channel.
        std: divisor, likewise.
    """

    token: int
    place: str
    rows: int
    side: int
    resize: Resize
    pixels: int
    filter: Filter
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def to_json(self) -> str:
        """Return the text of the file."""
        return documents.text_of(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> VisionInput:
        """Read the text of the file strictly.

        Raises:
            BundleError: it is no JSON, or a key is unknown or wrong; lists everything.
        """
        return documents.read(cls, text, FILE_NAME)

    @property
    def most_tiles(self) -> int:
        """Number of tiles of a square image; no other one has more."""
        # Of its sides one is rounded up to an even number.
        along = math.ceil((self.pixels + self.pixels % 2) / self.side)
        return along**2 + 1 if self.resize == "tiles" and along > 1 else 1

    def problems(self) -> Iterator[str]:
        """List what makes no sense."""
        for name, holds in (
            ("token", self.token >= 0),
            ("place", 1 <= len(self.place) <= _LONGEST_PLACE),
            ("rows", 1 <= self.rows <= _MOST_ROWS),
            ("side", 1 <= self.side <= MOST_SIDE),
            ("pixels", self.resize == "stretch" or self.side <= self.pixels <= MOST_SIDE),
            ("scale", 0 < self.scale <= 1),
            ("std", min(self.std) > 0),
        ):
            if not holds:
                yield f"{name}: received {str(getattr(self, name))[:60]}"
        if self.side < 1:
            return
        tiles = self.most_tiles
        for what, count, most in (
            ("tiles", tiles, _MOST_TILES),
            ("pixels in tiles", tiles * self.side**2, _MOST_PIXELS),
            ("tokens", tiles * self.rows, _MOST_TOKENS),
        ):
            if count > most:
                yield f"an image has up to {count} {what}, at most {most} are taken"

    def text(self, rows: int, columns: int) -> str:
        """Return the text of an image, with ``place`` for each embedding.

        Args:
            rows: Rows of tiles; 0 where it is one tile.
            columns: Columns of tiles.
        """
        tile = self.place * self.rows
        if self.resize in ("stretch", "crop"):
            return tile
        whole = f"{_AROUND}{_WHOLE}{tile}{_AROUND}"
        if not rows:
            return whole
        lines = (
            "".join(f"{_AROUND}{_PART.format(r, c)}{tile}" for c in range(1, columns + 1)) + "\n"
            for r in range(1, rows + 1)
        )
        return "".join(lines) + "\n" + whole
