"""Arguments that name a model, and options that describe its inputs."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgeinfer.errors import NotAvailableError, SourceError, UsageError

_SIZE = re.compile(r"\?|[0-9]+|[0-9]+\.\.[0-9]+")
_CALLABLE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What an argument stands for.

    Attributes:
        model: a path, or what a Python callable returned.
        stem: what a bundle of it is called unless the user says otherwise.
        example_inputs: of a PyTorch module.
        dynamic_shapes: of a PyTorch module.
    """

    model: Any
    stem: str
    example_inputs: Any = None
    dynamic_shapes: Any = None

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for the converter."""
        return {"example_inputs": self.example_inputs, "dynamic_shapes": self.dynamic_shapes}


TRUST_SOURCE = click.option(
    "--trust-source",
    is_flag=True,
    help="Load a .pt2 file with pickles or objects in it, which may run any Python code.",
)


def named_model(argument: str, *, trust_source: bool = False) -> NamedModel:
    """Understand a path or ``file.py:callable``.

    The callable takes nothing and returns a model, or a tuple of module, example inputs and, if
    any, dynamic shapes. Python is run only where it is named in this way.

    Args:
        argument: that.
        trust_source: load an exported program with all that PyTorch would run for it.

    Raises:
        UsageError: the file or callable is not there, or fails.
    """
    match = _CALLABLE.fullmatch(argument)
    if match is None or Path(argument).exists():
        path = Path(argument)
        if not path.exists():
            raise UsageError(f"{argument}: no such file")
        if path.suffix == ".py":
            raise UsageError(f"{argument}: name the callable that gives the model: {argument}:NAME")
        if trust_source:
            return NamedModel(_program(path), path.stem)
        return NamedModel(path, path.stem or path.name)
    path = Path(match["file"])
    made = _call(path, match["name"])
    if not isinstance(made, tuple):
        return NamedModel(made, path.stem)
    if not 2 <= len(made) <= 3:
        expected = "a module, example inputs and perhaps dynamic shapes"
        raise UsageError(f"{argument}: expected {expected}, received {len(made)} values")
    return NamedModel(made[0], path.stem, *made[1:])


def measure(argument: str | None) -> Any:
    """Understand the name of a measure or ``file.py:callable``.

    The callable takes the outputs of all runs and the labels of all samples, and returns a number
    that is higher the better it is. One that fails when it is called raises a ``UsageError`` too.

    Raises:
        UsageError: the file or callable is not there, or fails when it is read.
    """
    match = None if argument is None else _CALLABLE.fullmatch(argument)
    if match is None:
        return argument
    found = _loaded(Path(match["file"]), match["name"])
    if not callable(found):
        raise UsageError(f"--metric {argument}: expected a callable, found {type(found).__name__}")

    def measured(outputs: Any, labels: Any) -> float:
        try:
            return float(found(outputs, labels))
        except Exception as e:
            raise _failed(Path(match["file"]), match["name"], e) from e

    return measured


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


def integer_bounds(options: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Read ``input=low..high``.

    Raises:
        UsageError: one is malformed or repeated.
    """
    found: dict[str, tuple[int, int]] = {}
    for option in options:
        name, _, ends = option.rpartition("=")
        low, _, high = ends.partition("..")
        try:
            span = int(low), int(high)
        except ValueError as e:
            raise UsageError(f"--integers {option!r}: expected INPUT=LOW..HIGH") from e
        if not name or name in found or span[0] > span[1]:
            raise UsageError(f"--integers {option!r}: expected one INPUT=LOW..HIGH for an input")
        found[name] = span
    return found


def input_ranges(options: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Read ``input=low:high``.

    Raises:
        UsageError: one is malformed or repeated.
    """
    found: dict[str, tuple[float, float]] = {}
    for option in options:
        name, _, ends = option.rpartition("=")
        low, _, high = ends.partition(":")
        try:
            span = float(low), float(high)
        except ValueError as e:
            raise UsageError(f"--input-range {option!r}: expected INPUT=LOW:HIGH") from e
        if not name or name in found or not span[0] <= span[1]:
            expected = "expected one INPUT=LOW:HIGH for an input"
            raise UsageError(f"--input-range {option!r}: {expected}")
        found[name] = span
    return found


def _size(text: str) -> int | range | None:
    first, dots, last = text.partition("..")
    if dots:
        return range(int(first), int(last) + 1)
    return None if text == "?" else int(text)


def _call(path: Path, name: str) -> Any:
    found = _loaded(path, name)
    try:
        return found()
    except Exception as e:
        raise _failed(path, name, e) from e


def _program(path: Path) -> Any:
    if path.suffix != ".pt2":
        raise UsageError(f"--trust-source is for .pt2 files; {path} runs no Python")
    try:
        import torch
    except ImportError as e:
        raise NotAvailableError(
            f'{path}: reading a .pt2 file needs PyTorch: pip install "edgeinfer[torch]"'
        ) from e
    try:
        return torch.export.load(path)
    # PyTorch raises whatever the damaged part provokes.
    except Exception as e:
        reason = " ".join(str(e).split())[:300]
        raise SourceError(f"{path}: not a readable exported program ({reason})") from e


def _failed(path: Path, name: str, error: Exception) -> UsageError:
    reason = " ".join(str(error).split())
    return UsageError(f"{path}:{name} failed: {type(error).__name__}: {reason}")


def _loaded(path: Path, name: str) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Neighbouring modules are found, and classes can find their module, as with `python file.py`.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        return getattr(module, name)
    except Exception as e:
        raise _failed(path, name, e) from e
