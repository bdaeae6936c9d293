"""The vision tower and projector of a folder, as an ordinary bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.convert.late import late
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

_SMALL = {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8}
"""Sizes of the language part that is made beside the tower and not used."""


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
        source: what it says of pictures.
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
    """Load the vision part alone, in float32.

    Raises:
        NotAvailableError: torch or transformers is not installed.
        SourceError: it cannot be read, or some of its weights lack.
    """
    try:
        import torch
        import transformers
    except ImportError as e:
        install = 'pip install "edgeinfer[torch]" transformers'
        raise NotAvailableError(f"vision towers are exported by PyTorch: {e}; {install}") from e
    auto = transformers.AutoModelForImageTextToText
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            text = config.text_config
            for name, value in _SMALL.items():
                setattr(text, name, value)
            # Their lists are by layer, and their tokens beyond the small vocabulary.
            text.layer_types = ["full_attention"]
            config.pad_token_id = text.pad_token_id = None
            _check_count(folder, auto, config, source)
            whole, info = auto.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                dtype=torch.float32,
                attn_implementation="eager",
            )
        except SourceError:
            raise
        # What is wrong with a stranger's description comes in any form.
        except Exception as e:
            reason = " ".join(str(e).split())[:200] or type(e).__name__
            raise SourceError(f"{folder}: the vision tower cannot be read: {reason}") from e
    inner = whole.model
    ours = {id(value) for part in _parts(inner) for value in part.parameters()}
    names = {name for name, value in whole.named_parameters() if id(value) in ours}
    lost = names & {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    if lost:
        raise SourceError(f"{folder}: weights of the vision tower are missing: {_few(lost)}")
    return _module(inner, source.kind)


def _few(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def _parts(inner: Any) -> list[torch.nn.Module]:
    """The tower and the projector of a model without its head."""
    names = ("vision_tower", "vision_model", "multi_modal_projector", "connector")
    return [getattr(inner, name) for name in names if hasattr(inner, name)]


def _check_count(folder: Path, auto: Any, config: Any, source: VisionSource) -> None:
    """Refuse a description of more weights than there are, before memory is taken for them."""
    import torch

    with torch.device("meta"):
        empty = auto.from_config(config)
    count = sum(value.numel() for part in _parts(empty.model) for value in part.parameters())
    if count > source.elements:
        raise SourceError(
            f"{folder}: the vision tower of config.json has {count} weights, the files hold "
            f"{source.elements}"
        )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Say nothing of the language part, which is left out on purpose."""
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
