"""Which precision a stranger's file has: read where it may neither take the command along nor last.

Engines, and readers of formats that were made for files of ours, look at all of it.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.backends.process import child, isolation
from edgeinfer.backends.process.trial import limit_memory
from edgeinfer.convert.quantize.readback import layers, precision_name
from edgeinfer.errors import UsageError

LONGEST_S = 120.0
"""Seconds for a file; large ones take some."""

_MODULE = "edgeinfer.convert.quantize.readback_apart"
_MEMORY = 8 << 30


def precision_of(path: Path, format: str) -> str:
    """Return the name of a file's precision.

    Raises:
        UsageError: it cannot be read so; says how to give one.
    """
    # What reads a package takes a file within it.
    inner = path / "Manifest.json" if format == "mlprogram" and path.is_dir() else path
    if not isolation.apart():
        return _named(inner, format)
    process = child.Child(_MODULE, keep_errors=True)
    try:
        process.send((str(inner.absolute()), format))
        name, problem = process.receive(LONGEST_S, form=tuple[str, str])
    except TimeoutError:
        name, problem = "", f"no end after {LONGEST_S:g} s"
    except child.ChildEndedError as error:
        name, problem = "", error.how
    finally:
        process.kill()
    if problem:
        raise UsageError(f"{path}: its precision cannot be read ({problem}): give --precision")
    return str(name)


def _named(path: Path, format: str) -> str:
    return precision_name(layers(path, format))


def _answer() -> None:
    connection, _ = child.connect()
    path, format = child.read(connection)
    limit_memory(_MEMORY)
    try:
        answer = _named(Path(path), format), ""
    except Exception as error:
        answer = "", " ".join(str(error).split())[:200] or type(error).__name__
    child.answer(connection, answer)


if __name__ == "__main__":
    _answer()
