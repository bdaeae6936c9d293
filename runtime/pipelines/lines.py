"""An image in, the lines of text in it out: one model finds, one turns, one reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeinfer.heads import Classify, ReadText
from edgeinfer.media.image import AnyImage, open_image
from edgeinfer.media.warp import cut_out
from edgeinfer.results import Classification, Result, Text
from edgeinfer.runtime.pipelines.image import ImagePipeline
from edgeinfer.runtime.pipelines.model import OwnedModels, PipelineModel

_UPRIGHT = 1.5
"""Height over width from which a line is read from bottom to top."""
_HALF_TURN = "180"


class LinesPipeline(OwnedModels):
    """Three models that read a document or a scene.

    Args:
        find: gives boxes of lines.
        read: gives the text of one line.
        turn: gives the label ``180`` for a line that is upside down; None takes all as they are.
    """

    takes = "an image"

    def __init__(
        self, find: PipelineModel, read: PipelineModel, turn: PipelineModel | None = None
    ) -> None:
        self._find, self._read = ImagePipeline(find), ImagePipeline(read)
        self._turn = None if turn is None else ImagePipeline(turn)
        self.models = [model for model in (find, turn, read) if model is not None]

    def __call__(self, picture: AnyImage) -> list[Result]:
        """Read every line, from top to bottom; those below the reader's threshold are left out.

        Raises:
            InputError: it is no image.
            RunError: an engine failed, or outputs are not what a head says.
        """
        opened = open_image(picture)
        head = self._read.model.head
        threshold = head.threshold if isinstance(head, ReadText) else 0.0
        found: list[Result] = []
        for line in self._find(opened):
            if not isinstance(line, Text):
                continue
            text = self._text(np.asarray(cut_out(opened, line.corners)))
            if text.text and text.score >= threshold:
                found.append(replace(text, corners=line.corners))
        return found

    def _text(self, line: AnyImage) -> Text:
        if line.shape[0] >= _UPRIGHT * line.shape[1]:
            line = np.rot90(line)
        if self._is_upside_down(line):
            line = np.rot90(line, 2)
        read = self._read(line)[0]
        return read if isinstance(read, Text) else Text("", 0.0)

    def _is_upside_down(self, line: AnyImage) -> bool:
        if self._turn is None or not isinstance(self._turn.model.head, Classify):
            return False
        best = next(iter(self._turn(line)), None)
        return isinstance(best, Classification) and best.label == _HALF_TURN
