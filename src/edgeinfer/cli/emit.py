"""Files that start the same server elsewhere: a unit of systemd, and those of ``emit_containers``.

The command line that requested the file is the one that the file runs. Paths become absolute, or
those of a container; files of keys become what the other side has for secrets.
"""

from __future__ import annotations

import getpass
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgeinfer._version import __version__
from edgeinfer.errors import UsageError
from edgeinfer.installed import CONVERTER, RUNTIME, package
from edgeinfer.records import dataclass
from edgeinfer.runtime.serve.options import (
    KEYS_ENV,
    model_name,
    pipeline_name,
    read_upstreams,
    upstream_variable,
)

KINDS = ("systemd", "compose", "kserve")

_FILES = ("keys", "certificate", "private_key", "trusted", "revoked", "signature")
SECRET = ("keys", "private_key")
FOLDERS = ("disk",)
_OURS = ("emit", "image")
EXTRA_S = 5
"""Seconds beyond ``--drain-s`` until a server that does not end is killed."""

DEMANDS = {
    KEYS_ENV: ("keys", "--keys FILE"),
    "EDGEINFER_TRUSTED_KEYS": ("trusted", "--trusted PUBLIC"),
    "EDGEINFER_REVOKED": ("revoked", "--revoked FILE"),
    "EDGEINFER_NATIVE": ("native", "--no-native or --allow-native"),
    "EDGEINFER_ALLOW": ("allow", "--allow"),
}
"""Options that say what variables of the environment do, which no file takes along."""

SECRETS = ("EDGEINFER_BUNDLE_KEY", "EDGEINFER_BUNDLE_KEY_FILE")
"""Variables that no option stands for."""

_NOTHING = {"EDGEINFER_NATIVE": "auto"}

Place = Callable[[str, Path], str]
"""Gives the path that the other side has, for an option and a path here."""


@dataclass(frozen=True, slots=True)
class EmittedProgram:
    """What the file is to run.

    Attributes:
        context: Context of the command line.
        host: to listen on.
        port: Port of HTTP.
        grpc_port: None for none.
        drain_s: for requests under way at the end.
        image: Image of the container.
    """

    context: click.Context
    host: str
    port: int
    grpc_port: int | None
    drain_s: float
    image: str = ""

    def has(self, name: str) -> bool:
        """Whether an option was given."""
        source = self.context.get_parameter_source(name)
        return source is not None and source is not ParameterSource.DEFAULT

    def words(self, place: Place, **instead: str) -> Iterator[str]:
        """Give the command line anew.

        Args:
            place: Place of each path.
            **instead: values in the place of those given.
        """
        yield "serve"
        for param in self.context.command.params:
            name = param.name or ""
            if name in _OURS or name == "bundles":
                continue
            if name in instead:
                yield from (_longest(param), instead[name])
            elif self.has(name):
                yield from self._option(param, self.context.params[name], place)
        for given in self.context.params["bundles"]:
            # Always with its name: the path there may have a "=" of its own.
            name, path = model_name(given)
            yield f"{name}={place('bundles', Path(path))}"

    def _option(self, param: click.Parameter, value: Any, place: Place) -> Iterator[str]:
        flag, name = _longest(param), param.name or ""
        if isinstance(param, click.Option) and param.is_flag:
            # Two flags may share a name.
            yield from (flag,) if value is True or value == param.flag_value else ()
            return
        for each in value if isinstance(value, tuple) else (value,):
            if name == "pipelines":
                title, paths = pipeline_name(each)
                there = [place("bundles", path) for path in paths]
                if odd := [path for path in there if "," in path]:
                    raise UsageError(f"--emit: {odd[0]}: a pipeline's path with a comma ends there")
                yield from (flag, f"{title}={','.join(there)}")
            elif name in _FILES or name in FOLDERS:
                yield from (flag, place(name, Path(each)))
            else:
                yield from (flag, str(each))


def emit(kind: str, asked: EmittedProgram) -> str:
    """Return the text of the file.

    Raises:
        UsageError: the command cannot run there as it is.
    """
    if not asked.port:
        raise UsageError("--emit: give a --port; clients must know it")
    for variable, (name, flag) in DEMANDS.items():
        if os.environ.get(variable) not in (None, "", _NOTHING.get(variable)) and not asked.has(
            name
        ):
            raise UsageError(f"--emit: what {variable} demands stays here; give {flag}")
    for value in asked.context.params.values():
        for each in value if isinstance(value, tuple) else (value,):
            plain(str(each))
    if kind == "systemd":
        text = _systemd(asked)
    elif package() == RUNTIME:
        raise UsageError(f"--emit {kind}: {RUNTIME} writes units of systemd; a {CONVERTER} does it")
    else:
        from edgeinfer.cli.emit_containers import compose, kserve

        text = compose(asked) if kind == "compose" else kserve(asked)
    return "\n".join([*_left_out(asked), text])


def _left_out(asked: EmittedProgram) -> list[str]:
    """Say which keys are to be set there: no file holds them."""
    found = read_upstreams(asked.context.params["upstreams"])
    names = [upstream_variable(name) for name, upstream in found if upstream.key]
    names += [name for name in SECRETS if os.environ.get(name)]
    return [f"# Wanted in its environment: {', '.join(names)}"] if names else []


def there_of(name: str, path: Path) -> Path:
    """Return the whole path of a file that an option names.

    Raises:
        UsageError: nothing is there, or it cannot be written into a file.
    """
    if not (path.exists() or name in FOLDERS):
        raise UsageError(f"--emit: {path}: nothing is there")
    there = path.resolve()
    plain(str(there))
    return there


def plain(word: str) -> str:
    """Return a word, unless it would begin a line of its own, or cannot be seen by who reads it.

    Raises:
        UsageError: it would.
    """
    if not all(c.isprintable() or unicodedata.category(c) == "Zs" for c in word):
        raise UsageError(f"--emit: {word!a}: has control characters; give it another name")
    return word


def _longest(param: click.Parameter) -> str:
    return max(param.opts, key=len)


class _Raw(str):
    """A word that systemd is to read as it is."""

    __slots__ = ()


_LIMITS = """\
Restart=on-failure
RestartSec=2
MemoryMax=90%
MemorySwapMax=0
OOMScoreAdjust=500
TasksMax=1024
LimitNOFILE=65536
LimitCORE=0
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
UMask=0077
"""


def _systemd(asked: EmittedProgram) -> str:
    secrets: dict[str, Path] = {}
    writable: list[str] = []

    def place(name: str, path: Path) -> str:
        there = there_of(name, path)
        if name in FOLDERS:
            writable.append(str(there))
        if name not in SECRET:
            return str(there)
        secrets[name] = there
        return _Raw(f"${{CREDENTIALS_DIRECTORY}}/{name}")

    # Ports below 1024 are the system's.
    capability = "CAP_NET_BIND_SERVICE" if min(asked.port, asked.grpc_port or 1024) < 1024 else ""
    words = [plain(sys.executable), "-m", "edgeinfer", *asked.words(place)]
    parts = [
        "# systemctl edit --full --force edgeinfer.service, or a file in /etc/systemd/system; then",
        "# systemctl enable --now edgeinfer.service",
        "[Unit]",
        "Description=edgeinfer serve",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(_quoted(word) for word in words)}",
        f"User={plain(getpass.getuser())}",
        *(f"LoadCredential={name}:{_escaped(str(path))}" for name, path in secrets.items()),
        "CacheDirectory=edgeinfer",
        "Environment=XDG_CACHE_HOME=%C/edgeinfer",
        *(f"ReadWritePaths={_quoted(path)}" for path in writable),
        f"TimeoutStopSec={asked.drain_s + EXTRA_S:g}",
        f"CapabilityBoundingSet={capability}",
        f"AmbientCapabilities={capability}",
        _LIMITS,
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(parts)


def _escaped(word: str) -> str:
    return word.replace("%", "%%")


def _quoted(word: str) -> str:
    if isinstance(word, _Raw):
        return str(word)
    text = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return text if text and not set(text) & set(" '\";\\") else f'"{text}"'


def default_image() -> str:
    """Return the name of an image for containers."""
    return f"edgeinfer:{__version__}"
