"""Images in prompts: from files to embeddings in the place of tokens."""

from __future__ import annotations

import base64
import binascii
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer import forks
from edgeinfer.errors import InputError
from edgeinfer.llm.vision import MOST_SIDE, VisionInput
from edgeinfer.media.image import AnyImage, open_image, prepare, scaled
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.chat import ChatTemplate, Message
from edgeinfer.runtime.llm.executor import Floats
from edgeinfer.types import ImageInput

if TYPE_CHECKING:
    from PIL import Image

    from edgeinfer.runtime.session import Session

_KEPT_BYTES = 64 << 20
"""Bytes of embeddings that are kept: each turn of a conversation has its images again."""


@dataclass(frozen=True, slots=True)
class LocalImage:
    """A file of this machine, named by whoever may read it.

    Prompts and messages take no text as a path: what came from elsewhere, by JSON or in a file,
    cannot be one of these.

    Attributes:
        path: Path of the file.
    """

    path: str | Path


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt with images.

    Attributes:
        text: has the model's text for an image, such as ``<image>``, where each is; where it has
            none they come first.
        images: Images in their order: ``LocalImage``, contents of files, arrays (height, width,
            3) of uint8, or images of Pillow.
    """

    text: str
    images: Sequence[AnyImage]


@dataclass(frozen=True, slots=True)
class TiledImage:
    """An image as the vision tower takes it.

    Attributes:
        tiles: (tiles, 3, side, side) float32.
        text: stands for it in a prompt.
        key: Hash of the tiles.
    """

    tiles: Floats
    text: str
    key: bytes


@dataclass(frozen=True, slots=True)
class EmbeddedPrompt:
    """A prompt as the engine takes it.

    Attributes:
        tokens: all of them.
        embeddings: (given, hidden) in the place of some tokens'; None for none.
        positions: Positions of these in the prompt.
    """

    tokens: list[int]
    embeddings: Floats | None
    positions: tuple[int, ...]


class ImageReader:
    """Turns images into embeddings; threads wait for each other.

    Args:
        about: what becomes of an image.
        open_tower: opens the vision tower, at the first image and after a sleep.
    """

    def __init__(self, about: VisionInput, open_tower: Callable[[], Session]) -> None:
        self.about = about
        self._open_tower = open_tower
        self._tower: Session | None = None
        self._lock = forks.lock()
        self._known: OrderedDict[bytes, Floats] = OrderedDict()

    def opened(self, image: AnyImage) -> Image.Image:
        """Read an image.

        Raises:
            InputError: it is no image, or too large to be decoded safely.
            UsageError: no such file.
            NotAvailableError: Pillow is not installed.
        """
        _refuse_path(image, "images")
        return open_image(image.path if isinstance(image, LocalImage) else image)

    def tiled(self, image: AnyImage, go_on: Callable[[], None] = lambda: None) -> TiledImage:
        """Bring an image to tiles, as the model's own processor does.

        Args:
            image: the image.
            go_on: Called before each tile; what it raises ends it.

        Raises:
            InputError: it is no image, or too large to be decoded safely.
            UsageError: no such file.
            NotAvailableError: Pillow is not installed.
        """
        about, opened = self.about, self.opened(image)
        rows, columns = _grid(opened.size, about)
        if about.resize in ("tiles", "whole"):
            parts = _tiles(opened, about)
        else:
            parts = iter([_one_tile(opened, about)])
        record = ImageInput(
            *(about.side, about.side),
            resize="stretch",
            scale=about.scale,
            mean=about.mean,
            std=about.std,
        )
        made = []
        for part in parts:
            go_on()
            made.append(prepare(part, record)[0])
        tiles = np.concatenate(made)
        key = blake2b(tiles.tobytes(), digest_size=32).digest()
        return TiledImage(tiles, about.text(rows, columns), key)

    def read(
        self,
        prompt: ImagePrompt,
        encode: Callable[[str], list[int]],
        most: int,
        salt: bytes = b"",
        go_on: Callable[[], None] = lambda: None,
    ) -> EmbeddedPrompt:
        """Return the tokens of a prompt, and the embeddings of its images.

        Args:
            prompt: Prompt with images.
            encode: makes tokens of a text.
            most: tokens that it may have.
            salt: embeddings that are kept are shared only where it is the same.
            go_on: Called before each step with a tile; what it raises ends it.

        Raises:
            InputError: images are none, too many, or more or fewer than the placeholders.
            BackendError: the tower cannot run here, or failed.
        """
        place, text, images = self.about.place, prompt.text, list(prompt.images)
        if place not in text:
            text = place * len(images) + text
        first, *behind = text.split(place)
        if len(behind) != len(images):
            expected = f"one for each {place} of the prompt, {len(behind)}"
            raise InputError("images", expected, str(len(images)))
        count, parts, rows = 0, [first], []
        for image, rest in zip(images, behind, strict=True):
            # One after the other: their pixels take more memory than all that is made of them.
            opened = self.opened(image)
            down, across = _grid(opened.size, self.about)
            # Of what is refused neither tiles nor a text are made.
            count += (down * across + 1) * self.about.rows
            if count >= most:
                hint = "give fewer or smaller images"
                raise InputError("images", f"less than {most} tokens", f"{count} or more", hint)
            tiled = self.tiled(opened, go_on)
            del opened
            rows.append(self.embeddings(tiled, salt, go_on))
            parts += [tiled.text, rest]
        tokens = encode("".join(parts))
        positions = tuple(i for i, token in enumerate(tokens) if token == self.about.token)
        if len(positions) != count:
            expected = f"{count} tokens {place}, of images alone"
            raise InputError("prompt", expected, str(len(positions)))
        made = np.concatenate(rows) if rows else None
        return EmbeddedPrompt(tokens, made, positions)

    def fitted(
        self, template: ChatTemplate, messages: Sequence[Message], has_images: bool
    ) -> list[Message]:
        """Bring contents to the form, texts or lists of parts, that the template shows.

        Raises:
            InputError: a message is none, or a part is neither text nor image.
        """
        place = self.about.place
        contents = [_content(m, f"messages[{i}]") for i, m in enumerate(messages)]
        parts = [{"type": "image"}, {"type": "text", "text": _PROBE}]
        if not _shows(template, _PROBE, place, 0):
            contents = [
                [{"type": "text", "text": c}] if isinstance(c, str) else c for c in contents
            ]
        elif has_images and not _shows(template, parts, place, 1):
            contents = [_joined(c, place) for c in contents]
        # What has none, as a call of a tool may, goes on without.
        return [
            m if c is None else {**m, "content": c} for m, c in zip(messages, contents, strict=True)
        ]

    def embeddings(
        self,
        image: TiledImage,
        salt: bytes = b"",
        go_on: Callable[[], None] = lambda: None,
    ) -> Floats:
        """Return (embeddings, hidden) float32 of an image; the arguments are those of ``read``.

        Raises:
            BackendError: the tower cannot run here, or failed.
        """
        key = image.key + salt
        with self._lock:
            found = self._known.get(key)
            if found is None:
                if self._tower is None:
                    self._tower = self._open_tower()
                made = []
                for tile in image.tiles:
                    go_on()
                    made.append(self._tower(tile[None])[0])
                found = np.ascontiguousarray(np.concatenate(made), np.float32)
                self._keep(key, found)
            self._known.move_to_end(key)
            return found

    def _keep(self, key: bytes, found: Floats) -> None:
        self._known[key] = found
        while len(self._known) > 1 and sum(e.nbytes for e in self._known.values()) > _KEPT_BYTES:
            self._known.popitem(last=False)

    def close(self) -> None:
        """Release the tower; the next image opens it again."""
        with self._lock:
            tower, self._tower = self._tower, None
            if tower is not None:
                tower.close()


def _one_tile(image: Image.Image, about: VisionInput) -> Image.Image:
    side, (width, height) = about.side, image.size
    if about.resize == "stretch":
        return scaled(image, (side, side), about.filter)
    # The longer side is cut off, the shorter one rounded down, as transformers does both.
    short, long = about.pixels, int(about.pixels * max(width, height) / min(width, height))
    _check_length(long)
    width, height = (short, long) if width <= height else (long, short)
    left, top = (width - side) // 2, (height - side) // 2
    return scaled(image, (width, height), about.filter).crop((left, top, left + side, top + side))


_LONGEST = 1 << 15


def _check_length(pixels: int) -> None:
    if pixels > _LONGEST:
        hint = "cut it"
        received = f"one whose longer side would have {pixels}"
        raise InputError("image", f"at most {_LONGEST} pixels on its way", received, hint)


def _grid(size: tuple[int, int], about: VisionInput) -> tuple[int, int]:
    """Return rows and columns of the tiles besides the last one, of an image of a width and height.

    Both are 0 where the last one is the only one.
    """
    if about.resize != "tiles":
        return 0, 0
    width, height = _multiples(_longer(size, about.pixels), about.side)
    rows, columns = height // about.side, width // about.side
    return (0, 0) if rows == columns == 1 else (rows, columns)


def _tiles(image: Image.Image, about: VisionInput) -> Iterator[Image.Image]:
    """Give tiles, row by row.

    The whole numbers are those of transformers' processor of Idefics 3.
    """
    side = about.side
    rows, columns = _grid(image.size, about)
    image = scaled(image, _longer(image.size, about.pixels), about.filter)
    if about.resize == "tiles":
        image = scaled(image, _multiples(image.size, side), about.filter)
    for row in range(rows):
        for column in range(columns):
            x, y = column * side, row * side
            yield image.crop((x, y, x + side, y + side))
    # An image of one tile has this size already.
    yield image if image.size == (side, side) else scaled(image, (side, side), about.filter)


def _longer(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Return width and height with this longer side, the shorter one even."""
    width, height = size
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    # Beyond this both are brought back, and nothing is: ``longest`` is not beyond it.
    return min(max(width, 1), MOST_SIDE), min(max(height, 1), MOST_SIDE)


def _multiples(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return width and height as multiples of a tile, the longer one first."""
    width, height = size
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return max(width, side), max(height, side)


_PROBE = "edgeinfer"


def _shows(template: ChatTemplate, content: Any, place: str, count: int) -> bool:
    """Whether a template shows the probe in a content of this form, and its images."""
    try:
        text = template.render([{"role": "user", "content": content}])
    except InputError:
        return False
    # A list that is shown as a whole has its keys in the text.
    return _PROBE in text and text.count(place) == count and "'type'" not in text


def _content(message: Message, where: str) -> Any:
    """Return the content of a message whose parts are texts and images alone."""
    if not isinstance(message, Mapping):
        raise InputError(where, "an object with a role", repr(message)[:60])
    content = message.get("content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "image" and not (kind == "text" and isinstance(part.get("text"), str)):
            expected = "a part of type text or image"
            raise InputError(f"{where}.content[{number}]", expected, repr(part)[:60])
    return content


def _joined(content: Any, place: str) -> Any:
    if not isinstance(content, list):
        return content
    return "".join(place if part["type"] == "image" else part["text"] for part in content)


def separated(
    messages: Sequence[Message],
) -> tuple[list[Message], list[AnyImage]]:
    """Take the images out of a conversation.

    Returns:
        Messages whose parts say only that an image is there, and the images.

    Raises:
        InputError: a part is no image, or says where to fetch one.
    """
    images: list[AnyImage] = []
    made: list[Message] = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list):
            parts = []
            for number, part in enumerate(content):
                found = _picture(part, f"messages[{index}].content[{number}]")
                if found is not None:
                    images.append(found)
                    part = {"type": "image"}
                parts.append(part)
            message = {**message, "content": parts}
        made.append(message)
    return made, images


def _picture(part: Any, where: str) -> AnyImage | None:
    """The image of a part; None for a part of another kind."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image":
        found = part.get("image")
        if found is None:
            raise InputError(where, 'an image as "image"', ", ".join(map(repr, part)))
        _refuse_path(found, where)
        return found
    if kind != "image_url":
        return None
    given = part.get("image_url")
    return from_address(given.get("url") if isinstance(given, Mapping) else given, where)


def _refuse_path(image: AnyImage, where: str) -> None:
    """Refuse what may be a path of a stranger's.

    Raises:
        InputError: it is one, or a text.
    """
    if isinstance(image, str | os.PathLike):
        expected = "LocalImage(path), contents of a file, an array or an image of Pillow"
        raise InputError(where, expected, repr(image)[:60], "a text names no file here")


def from_address(address: Any, where: str) -> bytes:
    """Return the contents of a ``data:`` address; no other one is fetched.

    Raises:
        InputError: it is none.
    """
    expected = "data:image/…;base64,… (no address is fetched)"
    if not isinstance(address, str) or not address.startswith("data:"):
        raise InputError(where, expected, repr(address)[:60])
    head, comma, data = address.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InputError(where, expected, repr(head)[:60])
    return from_base64(data, where)


def from_base64(data: Any, where: str) -> bytes:
    """Return the bytes of a text of base64.

    Raises:
        InputError: it is none.
    """
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, TypeError, ValueError) as e:
        raise InputError(where, "an image in base64", str(e) or repr(data)[:40]) from e
