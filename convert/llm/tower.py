"""The vision tower and projector of a folder, as an ordinary bundle."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.convert.late import late
from edgeinfer.convert.llm.families.base import Tensors
from edgeinfer.convert.llm.vision import VisionSource
from edgeinfer.errors import NotAvailableError, SourceError
from edgeinfer.llm.vision import FILE_NAME, FOLDER, TOWER, VisionInput
from edgeinfer.records import dataclass
from edgeinfer.types import Array, ImageInput

if TYPE_CHECKING:
    import torch

    from edgeinfer.bundle.manifest import FileRecord
    from edgeinfer.bundle.writer import BundleWriter
    from edgeinfer.convert.llm.source import LlmSource

INPUT = "pixel_values"

_UNUSED = re.compile(r"vision_tower\.head\.")
"""What pools a tower's result to one vector, which no prompt has."""

_MOST_LISTED = 6


@dataclass(frozen=True, slots=True)
class AddedTower:
    """What was put into a bundle.

    Attributes:
        files: Files of it.
        sample: (rows, hidden) float32, embeddings of an image in float32.
    """

    files: tuple[FileRecord, ...]
    sample: Array


def add(
    writer: BundleWriter,
    given: LlmSource,
    source: VisionSource,
    targets: Sequence[str],
    unverified: bool,
) -> AddedTower:
    """Convert the tower as any model, judged by the same gate, and put it into a bundle.

    Args:
        writer: Writer of the bundle.
        given: the whole model.
        source: What it says of images.
        targets: names of device profiles.
        unverified: also write what nothing here can run.

    Raises:
        NotAvailableError: torch or transformers is not installed.
        SourceError: the tower cannot be made, or gives other embeddings than the decoder takes.
        ConvertError: as any conversion.
    """
    pictures = source.pictures
    tower = load(given.path, source)
    tile = _tile(pictures.side)
    embeddings = _embeddings(tower, tile)
    expected = (1, pictures.rows, given.config.hidden)
    if embeddings.shape != expected:
        found = f"{list(embeddings.shape)}, expected {list(expected)}"
        raise SourceError(f"{given.path}: the vision tower gives {found}")
    place = writer.folder(FOLDER) / TOWER
    _export(tower, pictures, tile, f"{place}/", targets, unverified)
    names = sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
    about = writer.add_bytes(FILE_NAME, pictures.to_json().encode())
    files = (about, *(writer.adopt(f"{FOLDER}/{TOWER}/{name}") for name in names))
    return AddedTower(files, embeddings[0])


def _tile(side: int) -> Array:
    """Return a tile of smooth colours, (1, 3, side, side) from -1 to 1."""
    rng = np.random.default_rng(0)
    waves = rng.uniform(1, 6, (3, 2, 1)), rng.uniform(0, 6, (3, 2, 1))
    line = np.sin(waves[0] * np.linspace(0, np.pi, side) + waves[1])
    tile = line[:, 0, :, None] * line[:, 1, None, :]
    return tile[None].astype(np.float32)


def _embeddings(tower: torch.nn.Module, tile: Array) -> Array:
    import torch

    with torch.no_grad():
        found: Array = tower(torch.from_numpy(tile)).numpy()
    return found


def _export(
    tower: torch.nn.Module,
    pictures: VisionInput,
    tile: Array,
    output: str,
    targets: Sequence[str],
    unverified: bool,
) -> None:
    import torch

    record = ImageInput(
        *(pictures.side, pictures.side),
        interpolation="bicubic",
        scale=pictures.scale,
        mean=pictures.mean,
        std=pictures.std,
    )
    late("pipeline.entry").export(
        *(tower, output),
        targets=targets,
        name="vision",
        example_inputs={INPUT: torch.from_numpy(tile)},
        preprocessing={INPUT: record},
        unverified=unverified,
    )


def load(folder: Path, source: VisionSource) -> torch.nn.Module:
    """Make the vision part alone, in float32.

    Args:
        folder: where it came from.
        source: what was read of it.

    Raises:
        NotAvailableError: torch or transformers is not installed.
        SourceError: it cannot be made of what was read, or its weights are others.
    """
    try:
        import torch
        import transformers
    except ImportError as e:
        install = 'pip install "edgeinfer[torch]" transformers'
        raise NotAvailableError(f"vision towers are exported by PyTorch: {e}; {install}") from e
    with _quiet(transformers):
        try:
            with torch.device("meta"):
                _check_weights(_made(source), source.weights)
            inner = _made(source)
        except SourceError as e:
            raise SourceError(f"{folder}: {e}") from e
        # What is wrong with a stranger's description comes in any form.
        except Exception as e:
            reason = " ".join(str(e).split())[:200] or type(e).__name__
            raise SourceError(f"{folder}: the vision tower cannot be made: {reason}") from e
    given = {_plain(name): tensor for name, tensor in source.weights.items()}
    with torch.no_grad():
        for name, value in _parameters(inner).items():
            value.copy_(torch.tensor(given[name].float32()))
    return _module(inner, source.kind)


def _made(source: VisionSource) -> Any:
    """Make the model without its head, of any weights.

    transformers is given numbers and names that are known here, and never the folder: what it finds
    in one may name Python to run, pickled weights, or another folder.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(source.kind, **copy.deepcopy(dict(source.config)))
    how = {"attn_implementation": "eager", "dtype": torch.float32}
    return transformers.AutoModel.from_config(config, trust_remote_code=False, **how)


_PARTS = ("vision_tower", "vision_model", "multi_modal_projector", "connector")


def _plain(name: str) -> str:
    """Return the name that a weight has here; transformers changed some over the years."""
    return name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.")


def _parameters(inner: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of the tower and the projector by their names here."""
    named = {_plain(name): value for name, value in inner.named_parameters()}
    return {name: value for name, value in named.items() if name.startswith(_PARTS)}


def _check_weights(inner: Any, tensors: Tensors) -> None:
    """Refuse other weights than the description says, before memory is taken for them.

    Raises:
        SourceError: names those that lack, are of another shape or more than it has.
    """
    wanted = {name: tuple(value.shape) for name, value in _parameters(inner).items()}
    given: dict[str, tuple[int, ...]] = {}
    problems = []
    for full, tensor in tensors.items():
        name = _plain(full)
        if name in given:
            problems.append(f"{name!r} is there twice")
        given[name] = tensor.shape
    problems += [f"{name!r} is missing" for name in wanted if name not in given]
    for name, shape in given.items():
        if name in wanted and shape != wanted[name]:
            problems.append(f"{name!r}: expected {wanted[name]}, received {shape}")
        elif name not in wanted and not _UNUSED.match(name):
            problems.append(f"{name!r} is unknown")
    if problems:
        more = len(problems) - _MOST_LISTED
        tail = f"; and {more} more" if more > 0 else ""
        listed = "; ".join(problems[:_MOST_LISTED])
        raise SourceError(f"weights of the vision tower: {listed}{tail}")


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep progress bars and remarks of transformers from the terminal."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _module(inner: Any, kind: str) -> torch.nn.Module:
    """Make a module of a tower and what brings its result to the decoder's size."""
    import torch

    class Llava(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            inner.language_model = None
            self.inner = inner

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            found = self.inner.get_image_features(pixel_values=pixel_values)
            return torch.stack(list(found.pooler_output))

    class Tiles(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.vision, self.connector = inner.vision_model, inner.connector

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            seen = self.vision(pixel_values=pixel_values).last_hidden_state
            found: torch.Tensor = self.connector(seen)
            return found

    return (Llava if kind == "llava" else Tiles)().eval()
