"""Models that say what they take and give: images, recordings and texts to what is in them."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from edgeinfer.errors import BundleError, UsageError
from edgeinfer.heads import Embed
from edgeinfer.media import audio, image
from edgeinfer.results import Audio, Embedding, Result, Segmentation, as_json
from edgeinfer.runtime.fleet import FleetModel
from edgeinfer.runtime.llm.ranking import INSTRUCTION, question
from edgeinfer.runtime.pipelines import (
    AudioPipeline,
    Pipeline,
    SentencePipeline,
    SpeechPipeline,
    SpokenPipeline,
    VoicePipeline,
    put_together,
)
from edgeinfer.runtime.pipelines.model import PipelineModel as Meaning
from edgeinfer.runtime.serve.http import DisconnectedError, RequestError
from edgeinfer.types import Array, ImageInput

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.vectors import Pooling

Prompt = str | list[int]
"""A text, or its tokens."""


class Asking:
    """A request that is worked for: whether its client is still there, and what was read for it.

    Attributes:
        left: is set when the client has left.
        tokens: Tokens of texts that were read, also where the work ended early.
    """

    def __init__(self) -> None:
        self.left, self.tokens = threading.Event(), 0


ASKING: ContextVar[Asking | None] = ContextVar("asking", default=None)
"""The request that runs here."""

_CONTEXTS = 8
"""Times the model's context that texts of one request may fill."""

_DRAWN = 16
"""Bytes a pixel: the image, tinted, drawn upon and packed."""

_LETTER_S = 0.25
"""Seconds that a letter of a text takes to be said."""

_SPOKEN = 16 * _LETTER_S
"""Bytes a sample a second for each of these letters: in single precision, as integers of 16 bits,
in a file and in its answer."""

_LONGEST_S = 3600.0
"""Seconds of audio that one request may hold or ask for: silence is packed to almost nothing."""

_BLOCKS = 16
"""Bytes for each value of a block of a recording, which is decoded, averaged and converted."""


class Shared:
    """The engine of a server's model, as a pipeline runs it; the server closes it.

    Args:
        model: Model of the runtime.
    """

    def __init__(self, model: FleetModel) -> None:
        self._model = model

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run once, in turn with requests of tensors.

        Raises:
            DisconnectedError: nobody waits for the answer any more.
        """
        reads()
        return self._model.run(feeds)

    def close(self) -> None:
        """Do nothing."""


def open_pipeline(
    paths: Sequence[Path], models: Sequence[FleetModel], trust: Mapping[str, Any]
) -> Pipeline:
    """Return the pipeline of bundles that are loaded already.

    Raises:
        UsageError: they do not say what they mean, or do not fit together.
        NotAvailableError: a library is missing.
        BundleError: another bundle has taken the place of one.
    """
    opened = []
    for path, model in zip(paths, models, strict=True):
        opened.append(meaning := Meaning(path, runs=Shared(model), **trust))
        if meaning.digest != model.engine.digest:
            raise BundleError(f"{path}: another bundle than the one that was loaded from there")
    return put_together(opened)


def check_chat(pipeline: Pipeline, has_chat: bool) -> None:
    """Raise where a language model stands behind what writes no speech down.

    Raises:
        UsageError: as said.
    """
    if has_chat and not isinstance(pipeline, SpokenPipeline):
        raise UsageError(
            "before a language model expected a bundle that finds speech, one that hears and one "
            "that writes"
        )


def cost(pipeline: Pipeline, given: bytes | str, limit: int, *, draws: bool) -> int:
    """Return the bytes that running a pipeline on a file's contents, or on a text, takes.

    Args:
        pipeline: what runs.
        given: contents of an image or recording; a text for one that reads texts.
        limit: values that a file may hold.
        draws: whether what is found is drawn.

    Raises:
        RequestError: it is not what the pipeline takes, or too large.
    """
    takes = pipeline.takes
    if isinstance(pipeline, SentencePipeline | VoicePipeline):
        if isinstance(given, bytes):
            raise RequestError(400, f"this model takes {takes}: send text/plain, or JSON with text")
        if isinstance(pipeline, SentencePipeline):
            return 0
        _check_length(_LETTER_S * len(given))
        return int(_SPOKEN * len(given) * pipeline.rate)
    if isinstance(given, str):
        raise RequestError(400, f"this model takes {takes}, not a text")
    if not given:
        raise RequestError(400, f"the body is empty; this model takes {takes}")
    if isinstance(pipeline, AudioPipeline | SpeechPipeline | SpokenPipeline):
        size, samples = audio.measured(given, pipeline.rate)
        _check_length(samples / pipeline.rate)
        whole = audio.HELD_BYTES * samples if pipeline.takes_whole else 0
        needed = max(whole, min(_BLOCKS * audio.BLOCK, audio.HELD_BYTES * (size + samples)))
    else:
        record = pipeline.models[0].record
        pixels, needed = image.measured(given, record) if isinstance(record, ImageInput) else (0, 0)
        size = 3 * pixels
        needed += _DRAWN * pixels if draws else 0
    if size > limit:
        raise RequestError(413, f"{takes} with {size} values; at most {limit}")
    return needed


def _check_length(seconds: float) -> None:
    """Refuse more audio than one request may have worked on.

    Raises:
        RequestError: 413.
    """
    if seconds > _LONGEST_S:
        raise RequestError(413, f"{seconds:.0f} s of audio; at most {_LONGEST_S:.0f} in a request")


def described(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return results as JSON has them; masks are PNG in base64, a level a class, audio is WAV."""
    found = []
    for result in results:
        data = as_json(result)
        if isinstance(result, Segmentation):
            data["mask"] = base64.b64encode(_png(result.mask)).decode()
        if isinstance(result, Audio):
            data["wav"] = base64.b64encode(result.wav()).decode()
        found.append(data)
    return found


def drawn(given: bytes, results: Sequence[Result]) -> bytes:
    """Return an image with what was found in it, as PNG."""
    from edgeinfer.media.overlay import overlay

    out = io.BytesIO()
    overlay(given, results).save(out, "PNG")
    return out.getvalue()


def gives_vectors(pipeline: Pipeline) -> TypeGuard[SentencePipeline]:
    """Whether a pipeline makes vectors of texts, whose tokens count wherever it is asked."""
    return isinstance(pipeline, SentencePipeline) and isinstance(pipeline.model.head, Embed)


def ran(pipeline: Pipeline, given: bytes | str) -> list[Result]:
    """Run a pipeline, and count the tokens of a text that becomes a vector.

    Raises:
        DisconnectedError: nobody waits for the answer any more.
    """
    if gives_vectors(pipeline) and isinstance(given, str):
        reads(pipeline.count(given))
    return pipeline(given)


def vectors(pipeline: Pipeline, texts: Sequence[str]) -> tuple[Array, int]:
    """Return a vector for each text, and the tokens that were read.

    Returns:
        (texts, size), float32, and a count.

    Raises:
        RequestError: the model gives none.
    """
    if not gives_vectors(pipeline):
        raise RequestError(400, f"this model takes {pipeline.takes} and gives no vectors of texts")
    found: list[Array] = []
    total = 0
    for text in texts:
        total += pipeline.count(text)
        found += [each.vector for each in ran(pipeline, text) if isinstance(each, Embedding)]
    return np.asarray(found, np.float32).reshape(len(texts), -1), total


def states(model: LLM, texts: Sequence[Prompt], pooling: str) -> tuple[Array, int]:
    """Return what a language model makes of each text, and the tokens that were read.

    Args:
        model: Language model.
        texts: texts or lists of tokens.
        pooling: which states count, as for ``LLM.embed``.

    Returns:
        (texts, hidden), float32, and a count.

    Raises:
        InputError: a text is empty or too long, or the pooling is not known.
    """
    read = [model.request(text).prompt for text in texts]
    tokens = _counted(model, read)
    made = model.embed(read, pooling=cast("Pooling", pooling), go_on=reads)
    return made, tokens


def judged(
    model: LLM, query: str, documents: Sequence[str], instruction: str | None
) -> tuple[Array, int]:
    """Return how well documents answer a query by a language model, and the tokens that were read.

    The query is read for each document anew.

    Raises:
        UsageError: the model's vocabulary has no yes and no.
        InputError: a document is too long.
    """
    instruction = INSTRUCTION if instruction is None else instruction
    asked = (question(query, text, instruction) for text in documents)
    tokens = _counted(model, [model.request(text).prompt for text in asked])
    return model.rank(query, documents, instruction=instruction, go_on=reads), tokens


def _counted(model: LLM, read: Sequence[Sequence[int]]) -> int:
    """Count tokens that are to be read; one request may not keep others waiting for minutes.

    Raises:
        RequestError: 413, there are too many.
    """
    tokens, most = sum(map(len, read)), _CONTEXTS * model.model.config.context
    if tokens > most:
        raise RequestError(413, f"{tokens} tokens in one request; at most {most}")
    return tokens


def reads(tokens: int = 0) -> None:
    """Count tokens that are about to be read.

    Raises:
        DisconnectedError: nobody waits for the answer any more.
    """
    asking = ASKING.get()
    if asking is None:
        return
    if asking.left.is_set():
        raise DisconnectedError
    asking.tokens += tokens


def _png(mask: Array) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(mask).save(out, "PNG")
    return out.getvalue()
