"""How a command line spells the values of a conversion's options: read from words and written."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from edgeinfer.errors import UsageError
from edgeinfer.options import Value

N = TypeVar("N", int, float)

_SIZE = re.compile(r"\?|[0-9]+|[0-9]+\.\.[0-9]+")

ELSEWHERE = "..."
"""Stands for what was given in memory, of which no file is known."""


def input_shapes(options: Iterable[str]) -> dict[str, list[tuple[int | range | None, ...]]]:
    """Read ``name=1,3,224,224``; ``?`` instead of a number keeps an axis as the model declares it.

    ``1..8`` are all sizes from the first to the last. A name that is given again has several
    shapes.

    Raises:
        UsageError: one is malformed.
    """
    shapes: dict[str, list[tuple[int | range | None, ...]]] = {}
    for option in options:
        # A name may hold the sign itself; sizes never do.
        name, sign, text = option.rpartition("=")
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        if not sign or not name or not all(_SIZE.fullmatch(p) for p in parts):
            raise UsageError(f"--input-shape {option!r}: expected NAME=1,3,224,? or NAME=1..8,224")
        shapes.setdefault(name, []).append(tuple(_size(p) for p in parts))
    return shapes


def _size(text: str) -> int | range | None:
    first, dots, last = text.partition("..")
    if dots:
        return range(int(first), int(last) + 1)
    return None if text == "?" else int(text)


def shape_words(shapes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Write what ``input_shapes`` reads."""
    for name, given in shapes.items():
        several = [s for s in given if s is not None and not isinstance(s, int | range)]
        for shape in several or [given]:
            yield f"{name}={','.join(map(_size_word, shape))}"


def _size_word(size: int | range | None) -> str:
    if isinstance(size, range):
        return f"{size[0]}..{size[-1]}"
    return "?" if size is None else str(size)


def adapter_places(options: Iterable[str]) -> dict[str, str]:
    """Read ``name=path``.

    Raises:
        UsageError: one is malformed, or a name is there twice.
    """
    paths: dict[str, str] = {}
    for option in options:
        name, _, path = option.partition("=")
        if not name or not path or name in paths:
            raise UsageError(f"--adapter {option!r}: expected NAME=PATH, each name once")
        paths[name] = path
    return paths


def adapter_words(folders: Mapping[str, Any]) -> Iterator[str]:
    """Write what ``adapter_places`` reads."""
    for name, path in folders.items():
        yield f"{name}={path}"


def state_pairs(options: Iterable[str]) -> dict[str, str]:
    """Read ``input:output`` pairs; names that hold the sign themselves take ``input=output``.

    Raises:
        UsageError: one is malformed or repeated.
    """
    pairs: dict[str, str] = {}
    for option in options:
        source, sign, output = option.partition("=" if "=" in option else ":")
        if not sign or not source or not output:
            raise UsageError(f"--state {option!r}: expected INPUT:OUTPUT")
        if source in pairs or output in pairs.values():
            raise UsageError(f"--state {option!r}: each input and output is part of one pair")
        pairs[source] = output
    return pairs


def state_words(states: Mapping[str, str]) -> Iterator[str]:
    """Write what ``state_pairs`` reads."""
    for source, output in states.items():
        yield f"{source}{'=' if ':' in source + output else ':'}{output}"


def integer_bounds(options: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Read ``input=low..high``.

    Raises:
        UsageError: one is malformed or repeated.
    """
    return _spans(options, "--integers", "..", int)


def input_ranges(options: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Read ``input=low:high``.

    Raises:
        UsageError: one is malformed or repeated.
    """
    return _spans(options, "--input-range", ":", float)


def _spans(
    options: Iterable[str], option: str, sign: str, number: Callable[[str], N]
) -> dict[str, tuple[N, N]]:
    found: dict[str, tuple[N, N]] = {}
    for text in options:
        name, _, ends = text.rpartition("=")
        low, _, high = ends.partition(sign)
        try:
            span = number(low), number(high)
        except ValueError as e:
            raise UsageError(f"{option} {text!r}: expected INPUT=LOW{sign}HIGH") from e
        if not name or name in found or not span[0] <= span[1]:
            expected = f"expected one INPUT=LOW{sign}HIGH for an input"
            raise UsageError(f"{option} {text!r}: {expected}")
        found[name] = span
    return found


def integer_words(spans: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Write what ``integer_bounds`` reads."""
    return (f"{name}={low}..{high}" for name, (low, high) in spans.items())


def range_words(spans: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Write what ``input_ranges`` reads."""
    return (f"{name}={low:g}:{high:g}" for name, (low, high) in spans.items())


def io_dtypes(options: Iterable[str]) -> dict[str, str]:
    """Read ``int8`` for all inputs and outputs, ``X=int8`` for one.

    Raises:
        UsageError: two of them are of the same.
    """
    found: dict[str, str] = {}
    for text in options:
        name, _, kind = text.rpartition("=")
        if name in found:
            raise UsageError(f"--io-dtype {text!r}: {name or 'all'!r} has one already")
        found[name] = kind
    return found


def dtype_words(kinds: Mapping[str, str]) -> Iterator[str]:
    """Write what ``io_dtypes`` reads."""
    return (f"{name}={kind}" if name else kind for name, kind in kinds.items())


def share(text: str) -> float:
    """Read a share: ``1%`` or ``0.01``.

    Raises:
        UsageError: it is no number.
    """
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError as e:
        raise UsageError(f"--max-drop {text!r}: expected a share such as 1% or 0.01") from e


def share_words(value: float) -> tuple[str]:
    """Write what ``share`` reads."""
    return (f"{100 * value:g}%",)


def place_words(value: Any) -> tuple[str]:
    """Write a path, or that no file is known."""
    return (str(value) if isinstance(value, str) or hasattr(value, "__fspath__") else ELSEWHERE,)


def metric_words(value: Any) -> tuple[str]:
    """Write the name of a measure; the user's own function has none."""
    return (value if isinstance(value, str) else str(getattr(value, "name", ELSEWHERE)),)


def by_media(name: str) -> Callable[[str], Any]:
    """Return what reads a file with a function of ``edgeinfer.media``, imported when it is used."""

    def read(path: str) -> Any:
        return getattr(importlib.import_module("edgeinfer.media"), name)(path)

    return read


STATES = Value("IN:OUT", multiple=True, read=state_pairs, write=state_words)
RECORDS = Value("FILE", read=by_media("parse_preprocessing"), write=place_words)
LABELS = Value("FILE", read=by_media("read_labels"), write=place_words)
FILES = Value("FILE", multiple=True)
DEPLOYMENT = Value(kind="deployment")
CODE = Value(kind="machine_code", multiple=True)
NAMES = Value("X", multiple=True)
INTEGERS = Value("X=0..9", multiple=True, read=integer_bounds, write=integer_words)
TARGETS = Value(kind="target", multiple=True)
PRECISION = Value(kind="precision")
PRECISIONS = Value("bf16,int8,...", multiple=True)
SECONDS = Value("SECONDS", kind="seconds")
SHAPES = Value("X=1,3,224,?", multiple=True, read=input_shapes, write=shape_words)
RANGES = Value("X=LO:HI", multiple=True, read=input_ranges, write=range_words)
KEY = Value("KEY")
RANDOM = Value("input|zero|SEED")
DESCRIPTION = Value("FILE", read=by_media("parse_description"), write=place_words)
DATA = Value("NPZ|DIR", write=place_words)
SAMPLES = Value("DIR|NPZ", write=place_words)
CALIBRATOR = Value(kind="calibrator")
COUNT = Value("COUNT", kind="count")
SHARE = Value("SHARE", read=share, write=share_words)
METRIC = Value("NAME", write=metric_words)
DTYPES = Value("[X=]int8", multiple=True, read=io_dtypes, write=dtype_words)
ADAPTERS = Value("NAME=PATH", multiple=True, read=adapter_places, write=adapter_words)
FILE = Value("FILE")
FOLDER = Value("DIR")
