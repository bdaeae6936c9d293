"""An image in, what a model sees in it out."""

from __future__ import annotations

import numpy as np

from edgeinfer.decode.boxes import detect
from edgeinfer.decode.extras import extra_of
from edgeinfer.decode.grouping import ByNumpy, Grouping
from edgeinfer.decode.masks import depth, segment
from edgeinfer.decode.regions import find_text
from edgeinfer.decode.scores import classify
from edgeinfer.decode.text import characters, read_text
from edgeinfer.decode.vectors import embed
from edgeinfer.errors import InputError, UsageError
from edgeinfer.heads import (
    Classify,
    Depth,
    Detect,
    DetectAnchors,
    DetectGrid,
    Embed,
    FindText,
    ReadText,
    Rotated,
    Segment,
)
from edgeinfer.media.feeds import image_of_rank
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.media.image import AnyImage
from edgeinfer.results import Result
from edgeinfer.runtime.pipelines.grouping import grouping
from edgeinfer.runtime.pipelines.image_preparation import preparation
from edgeinfer.runtime.pipelines.model import OwnedModels, PipelineModel, as_head_says
from edgeinfer.types import Array, ImageInput

_HEADS = Classify | Detect | Segment | Depth | Embed | FindText | ReadText


class ImagePipeline(OwnedModels):
    """A model that takes one image.

    Args:
        model: closed with the pipeline.

    Raises:
        UsageError: its head is not for images.
    """

    takes = "an image"

    def __init__(self, model: PipelineModel) -> None:
        if not isinstance(model.head, _HEADS) or len(model.inputs) != 1 or model.is_stateful:
            raise UsageError(f"{model.path}: {model.head.kind!r} is not read from one image")
        if not isinstance(model.record, ImageInput):
            raise UsageError(f"{model.path}: input {model.spec.name!r} takes no image")
        self.model = model
        self.models = [model]
        self._record = model.record
        head, given = model.head, (model.code, model.without_code)
        self._charset = (
            characters(model.files[head.charset], head) if isinstance(head, ReadText) else ()
        )
        self.grouping: Grouping = ByNumpy()
        self.prepare = preparation(*given, model.record, model.spec.dtype)
        model.around.append(self.prepare.about)
        if isinstance(head, DetectAnchors | DetectGrid) and not isinstance(extra_of(head), Rotated):
            self.grouping, about = grouping(*given)
            model.around.append(about)

    def __call__(self, picture: AnyImage) -> list[Result]:
        """Look at an image.

        Args:
            picture: a path, an array (height, width, 3) of uint8 in RGB order (grey and RGBA too),
                or a Pillow image. Boxes are in pixels of it, rotated upright as its EXIF tag says.

        Raises:
            InputError: it is no image.
            RunError: the engine failed, or the outputs are not what the head says.
        """
        outputs, placement = self.outputs(picture)
        with as_head_says(self.model.path):
            return self._read(outputs, placement)

    def _read(self, outputs: dict[str, Array], placement: ImagePlacement) -> list[Result]:
        head, model = self.model.head, self.model
        match head:
            case Classify():
                return [*classify(_row(model.output(outputs)), head, model.labels)]
            case Segment():
                return [segment(model.output(outputs), head, placement, model.labels)]
            case Depth():
                return [depth(model.output(outputs), head, placement)]
            case Embed():
                return [embed(model.output(outputs), head)]
            case FindText():
                return [*find_text(model.output(outputs), head, placement)]
            case ReadText():
                return [*read_text(model.output(outputs), head, self._charset)]
        if isinstance(head, Detect):
            return [*detect(outputs, head, placement, model.labels, self.grouping)]
        raise UsageError(f"{model.path}: {head.kind!r} is not read from one image")

    def outputs(self, picture: AnyImage) -> tuple[dict[str, Array], ImagePlacement]:
        """Return the model's outputs for an image, and where it lies in the model's input."""
        spec = self.model.spec
        tensor, placement = self.prepare(picture)
        rank = None if spec.shape is None else len(spec.shape)
        feeds = {spec.name: _batched(image_of_rank(tensor, spec, self._record, rank), spec.shape)}
        return self.model.run(feeds, {}), placement


def _batched(tensor: Array, shape: tuple[int | str | None, ...] | None) -> Array:
    if shape and isinstance(shape[0], int) and shape[0] != 1 and len(shape) > 3:
        raise InputError("image", f"{shape[0]} at once", "one", "convert with a batch of 1")
    return tensor


def _row(scores: Array) -> Array:
    """Return the scores of the one image; other axes of one element are dropped."""
    row = np.squeeze(scores)
    if row.ndim > 1:
        raise UsageError(f"head: expected one row of scores, received {list(scores.shape)}")
    return row.reshape(-1)
