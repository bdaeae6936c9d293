"""What an input is: an image, a recording, token ids, a mask ... inferred from its use."""

from __future__ import annotations

import re
from typing import Literal

from edgeinfer.records import dataclass
from edgeinfer.types import (
    AudioInput,
    ImageInput,
    NoiseInput,
    Preprocessing,
    TensorSpec,
    TokenInput,
)

Name = Literal[
    "image",
    "audio",
    "tokens",
    "mask",
    "positions",
    "length",
    "sizes",
    "factor",
    "share",
    "sample_rate",
    "state",
    "text",
    "draws",
    "plain",
]

_AUDIO = re.compile(r"audio|wav|speech|sound|samples|pcm|signal|sig\b", re.IGNORECASE)
_STATE = re.compile(r"state|hidden|cell|cache|past|memory|^[hc]n?[0-9]*(_in)?$", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_BIAS = re.compile(r"bias", re.IGNORECASE)
"""What is added to scores, perhaps one for each query and key: it looks like a picture."""
_POSITION = re.compile(r"position|cache_pos", re.IGNORECASE)
_LENGTH = re.compile(r"(^|_)(len|lens|length|lengths)([0-9]*|_.*)$", re.IGNORECASE)
_RATE = re.compile(r"^(sr|fs|rate|sample_?rate)$", re.IGNORECASE)
_SIZES = re.compile(
    r"^(im|img|image|orig|original|target)(_(im|img|image|target))?_?(shape|size)s?$"
)
"""Height and width of pictures, as detectors take them to bring boxes back to the picture."""
_FACTOR = re.compile(r"^(scale_?factors?|temperature)$")
"""What is near one, and divides."""
_SHARE = re.compile(r"^(([a-z]+_)?threshold|top_?p)$")
"""What lies between zero and one."""

_CHANNELS = (1, 3, 4)
_LONG = 400
"""Samples from which a fixed axis among others of one element is taken for a recording."""

POSITIVE = frozenset({"sizes", "factor", "share"})
"""Kinds of floats that mean nothing below zero."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What an input is.

    Attributes:
        name: Name of the kind.
        vocab: ids lie below this, where the user's record says so.
        channel_axis: Channel axis of an ``image``; None elsewhere.
        time_axis: Time axis of ``audio``; None elsewhere.
        record: how the user says it is prepared; None when nothing was said.
    """

    name: Name
    vocab: int | None = None
    channel_axis: int | None = None
    time_axis: int | None = None
    record: Preprocessing | None = None


def guess_kind(spec: TensorSpec, record: Preprocessing | None = None) -> Kind:
    """Tell what an input is from the user's record and its looks.

    What its elements lie between is inferred from the graph, see ``bounds``.
    """
    if isinstance(record, ImageInput):
        return Kind("image", channel_axis=1 if record.layout == "NCHW" else 3, record=record)
    if isinstance(record, AudioInput):
        return Kind("audio", time_axis=_time_axis(spec), record=record)
    if isinstance(record, TokenInput):
        return Kind("tokens", vocab=record.vocab_size, record=record)
    if isinstance(record, NoiseInput):
        return Kind("draws", record=record)
    if spec.dtype == "string":
        return Kind("text")
    if spec.dtype == "bool":
        return Kind("mask")
    if spec.dtype.startswith(("int", "uint")):
        return _integer_kind(spec)
    return _float_kind(spec)


def _integer_kind(spec: TensorSpec) -> Kind:
    axis = _channel_axis(spec)
    if spec.dtype == "uint8" and axis is not None:
        return Kind("image", channel_axis=axis)
    if _RATE.search(spec.name):
        return Kind("sample_rate")
    if _MASK.search(spec.name):
        return Kind("mask")
    if _LENGTH.search(spec.name):
        return Kind("length")
    if _POSITION.search(spec.name) and spec.shape:
        return Kind("positions")
    if _are_sizes(spec):
        return Kind("sizes")
    return Kind("tokens") if spec.shape else Kind("plain")


def _float_kind(spec: TensorSpec) -> Kind:
    if _STATE.search(spec.name):
        return Kind("state")
    if _MASK.search(spec.name):
        return Kind("mask")
    if _are_sizes(spec):
        return Kind("sizes")
    if _FACTOR.search(spec.name):
        return Kind("factor")
    if _SHARE.search(spec.name):
        return Kind("share")
    axis = _channel_axis(spec)
    if axis is not None and not _BIAS.search(spec.name):
        return Kind("image", channel_axis=axis)
    time = _time_axis(spec)
    if time is not None and spec.shape is not None:
        length = spec.shape[time]
        if _AUDIO.search(spec.name) or (isinstance(length, int) and length >= _LONG):
            return Kind("audio", time_axis=time)
        if not isinstance(length, int) and len(spec.shape) == 2:
            return Kind("audio", time_axis=time)
    return Kind("plain")


def _are_sizes(spec: TensorSpec) -> bool:
    return bool(_SIZES.search(spec.name) and spec.shape and spec.shape[-1] == 2)


def _channel_axis(spec: TensorSpec) -> int | None:
    if spec.shape is None or len(spec.shape) != 4:
        return None
    if spec.shape[1] in _CHANNELS:
        return 1
    return 3 if spec.shape[3] in _CHANNELS else None


def _time_axis(spec: TensorSpec) -> int | None:
    """The one axis, batch aside, that is not of size one."""
    if not spec.shape:
        return None
    rest = range(1, len(spec.shape)) if len(spec.shape) > 1 else range(1)
    wide = [a for a in rest if spec.shape[a] != 1]
    return wide[0] if len(wide) == 1 and len(spec.shape) <= 3 else None
