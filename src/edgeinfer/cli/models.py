"""Arguments that name a model or a measure."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import click

from edgeinfer.errors import NotAvailableError, SourceError, UsageError
from edgeinfer.installed import install
from edgeinfer.records import dataclass

_CALLABLE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What an argument stands for.

    Attributes:
        model: a path, or what a Python callable returned.
        stem: what a bundle of it is called unless the user says otherwise.
        example_inputs: Example inputs of a PyTorch module.
        dynamic_shapes: Dynamic shapes of a PyTorch module.
        trust_source: the file is read without bounds.
    """

    model: Any
    stem: str
    example_inputs: Any = None
    dynamic_shapes: Any = None
    trust_source: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for the converter."""
        names = "example_inputs", "dynamic_shapes", "trust_source"
        return {name: getattr(self, name) for name in names}


TRUST_SOURCE = click.option(
    "--trust-source",
    is_flag=True,
    help="Read MODEL without bounds of memory and time; of a .pt2 file also pickles, objects and "
    "odd operators, which may run any code.",
)


def named_model(argument: str, *, trust_source: bool = False) -> NamedModel:
    """Understand a path or ``file.py:callable``.

    The callable takes nothing and returns a model, or a tuple of module, example inputs and, if
    any, dynamic shapes. Python is run only where it is named in this way.

    Args:
        argument: that.
        trust_source: read the file without bounds, and load an exported program with all that
            PyTorch would run for it.

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
        if trust_source and path.suffix == ".pt2":
            return NamedModel(_program(path), path.stem)
        return NamedModel(path, path.stem or path.name, trust_source=trust_source)
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


def _call(path: Path, name: str) -> Any:
    found = _loaded(path, name)
    try:
        return found()
    except Exception as e:
        raise _failed(path, name, e) from e


def _program(path: Path) -> Any:
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
    lacks = isinstance(error, ModuleNotFoundError) and error.name == "torch"
    more = f"; PyTorch models need it: {install('torch')}" if lacks else ""
    return UsageError(f"{path}:{name} failed: {type(error).__name__}: {reason}{more}")


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
