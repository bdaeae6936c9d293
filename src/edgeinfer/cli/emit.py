"""Files that start the same server elsewhere: a unit of systemd, Compose, KServe.

The command line that requested the file is the one that the file runs. Paths become absolute, or
those of a container; files of keys become what the other side has for secrets.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgeinfer._version import __version__
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass
from edgeinfer.runtime.serve.options import (
    model_name,
    pipeline_name,
    read_upstreams,
    upstream_variable,
)

KINDS = ("systemd", "compose", "kserve")

_FILES = ("keys", "certificate", "private_key", "trusted", "revoked", "signature")
_SECRET = ("keys", "private_key")
_FOLDERS = ("disk",)
_OURS = ("emit", "image")
_UID = 10001
"""Of the user inside of a container, who owns nothing."""

_EXTRA_S = 5
"""Seconds beyond ``--drain-s`` until a server that does not end is killed."""

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
            elif name in _FILES or name in _FOLDERS:
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
    if os.environ.get("EDGEINFER_SERVE_KEYS") and not asked.has("keys"):
        raise UsageError("--emit: keys of the environment stay here; give --keys FILE")
    for value in asked.context.params.values():
        for each in value if isinstance(value, tuple) else (value,):
            _plain(str(each))
    text = {"systemd": _systemd, "compose": _compose, "kserve": _kserve}[kind](asked)
    return "\n".join([*_left_out(asked), text])


def _left_out(asked: EmittedProgram) -> list[str]:
    """Say which keys of other servers are to be set there: no file holds them."""
    found = read_upstreams(asked.context.params["upstreams"])
    names = [upstream_variable(name) for name, upstream in found if upstream.key]
    return [f"# Wanted in its environment: {', '.join(names)}"] if names else []


def _there(name: str, path: Path) -> Path:
    if not (path.exists() or name in _FOLDERS):
        raise UsageError(f"--emit: {path}: nothing is there")
    there = path.resolve()
    _plain(str(there))
    return there


def _plain(word: str) -> str:
    """Refuse what would begin a line of its own, or cannot be seen by who reads the file."""
    if not all(c.isprintable() or unicodedata.category(c) == "Zs" for c in word):
        raise UsageError(f"--emit: {word!a}: has control characters; give it another name")
    return word


def _longest(param: click.Parameter) -> str:
    return max(param.opts, key=len)


# systemd


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
        there = _there(name, path)
        if name in _FOLDERS:
            writable.append(str(there))
        if name not in _SECRET:
            return str(there)
        secrets[name] = there
        return _Raw(f"${{CREDENTIALS_DIRECTORY}}/{name}")

    # Ports below 1024 are the system's.
    capability = "CAP_NET_BIND_SERVICE" if min(asked.port, asked.grpc_port or 1024) < 1024 else ""
    words = [_plain(sys.executable), "-m", "edgeinfer", *asked.words(place)]
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
        f"User={_plain(getpass.getuser())}",
        *(f"LoadCredential={name}:{_escaped(str(path))}" for name, path in secrets.items()),
        "CacheDirectory=edgeinfer",
        "Environment=XDG_CACHE_HOME=%C/edgeinfer",
        *(f"ReadWritePaths={_quoted(path)}" for path in writable),
        f"TimeoutStopSec={asked.drain_s + _EXTRA_S:g}",
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


# Containers


@dataclass(slots=True)
class _Mounts:
    """Paths inside of a container, by those outside.

    Attributes:
        folder: that bundles and other files come to.
    """

    folder: str
    found: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        there = path.resolve()
        if there not in self.found:
            name = there.name
            if f"{self.folder}/{name}" in self.found.values():
                name = f"{len(self.found)}-{name}"
            self.found[there] = f"{self.folder}/{name}"
        return self.found[there]


def _container(asked: EmittedProgram, mounts: _Mounts, secret: str) -> list[str]:
    """Return the command of a container that listens to all, which needs keys or a word."""
    if not (asked.has("keys") or asked.has("insecure")):
        raise UsageError("--emit: containers are open to others: give --keys FILE, or --insecure")

    def place(name: str, path: Path) -> str:
        _there(name, path)
        if name in _SECRET:
            return f"{secret}/{name}"
        return "/cache/disk" if name in _FOLDERS else mounts.place(path)

    return ["edgeinfer", *asked.words(place, host="0.0.0.0")]


def _ready(asked: EmittedProgram) -> str:
    """Return a program that fails while the server is not ready."""
    scheme, more = "http", ""
    if asked.has("certificate"):
        scheme, more = "https", ",context=ssl._create_unverified_context()"
    url = f"{scheme}://127.0.0.1:{asked.port}/v2/health/ready"
    return f"import ssl,urllib.request as r;r.urlopen('{url}',timeout=5{more})"


def _compose(asked: EmittedProgram) -> str:
    mounts = _Mounts("/models")
    command = _container(asked, mounts, "/run/secrets")
    secrets = {
        name: {"file": _doubled(Path(asked.context.params[name]).resolve())}
        for name in _SECRET
        if asked.has(name)
    }
    ports = [p for p in (asked.port, asked.grpc_port) if p is not None]
    service: dict[str, Any] = {
        "image": asked.image,
        "command": list(map(_doubled, command)),
        "ports": [f"{_bracketed(asked.host)}:{port}:{port}" for port in ports],
        "volumes": [
            *(
                {
                    "type": "bind",
                    "source": _doubled(here),
                    "target": _doubled(there),
                    "read_only": True,
                }
                for here, there in mounts.found.items()
            ),
            {"type": "volume", "source": "cache", "target": "/cache"},
        ],
        "environment": {"XDG_CACHE_HOME": "/cache", "HOME": "/tmp"},
        "secrets": list(secrets),
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": 1024,
        "mem_limit": "${EDGEINFER_MEMORY:-4g}",
        "restart": "unless-stopped",
        "stop_grace_period": f"{asked.drain_s + _EXTRA_S:g}s",
        "healthcheck": {
            "test": ["CMD", "python", "-c", _ready(asked)],
            "interval": "30s",
            "timeout": "10s",
            "start_period": "60s",
        },
    }
    if not secrets:
        del service["secrets"]
    whole: dict[str, Any] = {
        "services": {"edgeinfer": service},
        "volumes": {"cache": {}},
        **({"secrets": secrets} if secrets else {}),
    }
    head = f"# docker compose up; {asked.image} is an image with edgeinfer[serve] and the engines\n"
    return head + "\n".join(_yaml(whole))


def _doubled(word: object) -> str:
    """Return a word in which Compose and Kubernetes expand nothing: two dollars are one there."""
    return str(word).replace("$", "$$")


_RESTRICTED: dict[str, Any] = {
    "resources": {
        "requests": {"cpu": "1", "memory": "1Gi"},
        "limits": {"cpu": "4", "memory": "4Gi"},
    },
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": _UID,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
}
"""What a container in a cluster may take and do."""


def _kserve(asked: EmittedProgram) -> str:
    if asked.has("certificate"):
        raise UsageError("--emit kserve: the cluster's gateway speaks TLS; leave --certificate out")
    mounts = _Mounts("/mnt/models")
    command = [_doubled(w) for w in _container(asked, mounts, "/etc/edgeinfer")]
    get = {"port": asked.port}
    container: dict[str, Any] = {
        "name": "kserve-container",
        "image": asked.image,
        "command": command,
        "ports": [{"name": "http1", "containerPort": asked.port, "protocol": "TCP"}],
        "env": [{"name": "XDG_CACHE_HOME", "value": "/cache"}, {"name": "HOME", "value": "/cache"}],
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", **get}},
        "livenessProbe": {
            "httpGet": {"path": "/v2/health/live", **get},
            "initialDelaySeconds": 10,
        },
        **_RESTRICTED,
        "volumeMounts": [
            {"name": "models", "mountPath": "/mnt/models", "readOnly": True},
            {"name": "cache", "mountPath": "/cache"},
        ],
    }
    volumes: list[dict[str, Any]] = [
        {"name": "models", "persistentVolumeClaim": {"claimName": "edgeinfer-models"}},
        {"name": "cache", "emptyDir": {}},
    ]
    notes = [f"# Wanted: a claim edgeinfer-models with {', '.join(p.name for p in mounts.found)}"]
    if asked.has("keys"):
        container["volumeMounts"].append(
            {"name": "keys", "mountPath": "/etc/edgeinfer", "readOnly": True}
        )
        volumes.append({"name": "keys", "secret": {"secretName": "edgeinfer-keys"}})
        notes.append("# kubectl create secret generic edgeinfer-keys --from-file=keys=FILE")
    scrape = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(asked.port),
        "prometheus.io/path": "/metrics",
    }
    predictor = {
        "terminationGracePeriodSeconds": int(asked.drain_s + _EXTRA_S),
        "containers": [container],
        "volumes": volumes,
    }
    whole = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "edgeinfer", "annotations": scrape},
        "spec": {"predictor": predictor},
    }
    return "\n".join([*notes, *_yaml(whole)])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def default_image() -> str:
    """Return the name of an image for containers."""
    return f"edgeinfer:{__version__}"


def _yaml(value: object, indent: str = "") -> Iterator[str]:
    """Write tables, lists and plain values; a text of JSON is one of YAML."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _nested(f"{indent}{_key(key)}:", each, indent + "  ")
    elif isinstance(value, list) and value:
        for each in value:
            first, *more = _yaml(each, indent + "  ")
            yield f"{indent}- {first.strip()}"
            yield from more
    else:
        yield f"{indent}{json.dumps(value)}"


def _nested(head: str, value: object, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping | list) and value:
        yield head
        yield from _yaml(value, indent)
    else:
        yield f"{head} {json.dumps(value)}"


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else json.dumps(key)
