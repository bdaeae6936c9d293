"""``--config``: the words of a command line from a TOML file; ``--save-config`` writes one.

A key is an option without its dashes, ``model`` the argument; a value is the word that would be
typed, ``true`` for a flag, a list where the option may be repeated. What is typed goes before.
Such a file is data: what runs somebody's Python is typed.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgeinfer.bounded import read_bounded
from edgeinfer.cli.files import check_output, write_bytes
from edgeinfer.errors import UsageError
from edgeinfer.options import Section
from edgeinfer.toml import TOMLDecodeError, loads

CONFIGURED = Section(
    "Configuration",
    "edgeinfer convert model.onnx -t rpi5 --save-config edge.toml",
    ("config", "save_config"),
)
_OWN = ("config", "save_config", "help")
_TYPED = ("trust-source", "overwrite", "force", "unverified")
"""What only a user may decide: whoever wrote the file may be somebody else."""
_SUFFIX, _MOST, _MOST_PROBLEMS, _LARGEST = ".toml", 1 << 20, 20, 1 << 63
_CODE = re.compile(r".+\.py:\w+")


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add both options; the file to write is written once the command has done its work."""

    @click.option(
        "--config",
        is_eager=True,
        callback=_read,
        metavar="TOML",
        help="File with options; what is typed goes before.",
    )
    @click.option(
        "--save-config", metavar="TOML", help="Write the options of this call as such a file."
    )
    @functools.wraps(command)
    def wrapped(*args: Any, config: str | None, save_config: str | None, **values: Any) -> None:
        if save_config is None:
            command(*args, **values)
            return
        path = Path(save_config)
        lines = "".join(_lines(click.get_current_context()))
        check_output(path, _SUFFIX, b"#", overwrite=values.get("overwrite", False))
        command(*args, **values)
        write_bytes(path, f"{HEADER}{lines}".encode(), overwrite=True)

    return wrapped


HEADER = "# edgeinfer convert --config THIS-FILE; paths are relative to the folder it is run in.\n"


def _key(parameter: click.Parameter) -> str:
    """The longest name of an option, without its dashes; of an argument its own."""
    if isinstance(parameter, click.Argument):
        return parameter.name or ""
    return max(parameter.opts, key=len).lstrip("-")


def _known(ctx: click.Context) -> dict[str, click.Parameter]:
    return {_key(p): p for p in ctx.command.params if p.name not in _OWN}


def _read(ctx: click.Context, _: click.Parameter, path: str | None) -> str | None:
    """Let the file's words stand where none are typed.

    Raises:
        UsageError: the file is not there or no TOML, or has what no option is; lists all of that.
    """
    if path is None:
        return None
    try:
        found = loads(read_bounded(Path(path), _MOST).decode())
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror or error}") from error
    except (TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--config {path}: no TOML: {error}") from error
    known = _known(ctx)
    problems: list[str] = []
    words: dict[str, Any] = {}
    for key, value in found.items():
        if len(problems) == _MOST_PROBLEMS:
            problems.append("and more")
            break
        parameter = known.get(key)
        if parameter is None:
            problems.append(f"{_shown(key)} is no option; known: {', '.join(sorted(known))}")
            continue
        if key in _TYPED:
            problems.append(f"{key!r} is for whoever runs the command: type --{key}")
            continue
        if isinstance(value, str) and _CODE.fullmatch(value):
            problems.append(f"{key!r} would run Python code: type it")
            continue
        try:
            words[parameter.name or ""] = _word(parameter, value)
        except UsageError as error:
            problems.append(f"{key!r} {error}")
    if problems:
        raise UsageError("\n".join(f"--config {path}: {problem}" for problem in problems))
    ctx.default_map = {**(ctx.default_map or {}), **words}
    return path


def _word(parameter: click.Parameter, value: Any) -> Any:
    """Return what click takes for it.

    Raises:
        UsageError: the value is of another kind.
    """
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"is a flag: expected true or false, not {_shown(value)}")
        return value
    several = parameter.multiple if isinstance(parameter, click.Option) else False
    given = value if several and isinstance(value, list) else [value]
    wrong = [v for v in given if isinstance(v, bool) or not isinstance(v, str | int | float)]
    if any(isinstance(v, int) and abs(v) > _LARGEST for v in given):
        raise UsageError("has a number of more than 64 bits")
    if wrong:
        expected = "a text, a number or a list of them" if several else "a text or a number"
        raise UsageError(f"expected {expected}, not {_shown(wrong[0])}")
    words = [str(v) for v in given]
    return words if several else words[0]


def _shown(value: Any) -> str:
    """Return the beginning of a value, as Python writes it."""
    text = repr(value) if isinstance(value, str | bool) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _lines(ctx: click.Context) -> Iterator[str]:
    """Write what was typed or read, an option a line."""
    said = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    for key, parameter in _known(ctx).items():
        name = parameter.name or ""
        value = ctx.params.get(name)
        runs = key in _TYPED or _CODE.fullmatch(str(value))
        if not runs and ctx.get_parameter_source(name) in said and value not in (None, (), False):
            yield f"{key} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    # A text of JSON is one of TOML, but for the one character that TOML does not take as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
