"""Files of containers that start the same server: Compose, KServe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from edgeinfer.cli.emit import (
    EXTRA_S,
    FOLDERS,
    SECRET,
    EmittedProgram,
    there_of,
)
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

_UID = 10001
"""Of the user inside of a container, who owns nothing."""


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
        there_of(name, path)
        if name in SECRET:
            return f"{secret}/{name}"
        return "/cache/disk" if name in FOLDERS else mounts.place(path)

    return ["edgeinfer", *asked.words(place, host="0.0.0.0")]


def _ready(asked: EmittedProgram) -> str:
    """Return a program that fails while the server is not ready."""
    scheme, more = "http", ""
    if asked.has("certificate"):
        scheme, more = "https", ",context=ssl._create_unverified_context()"
    url = f"{scheme}://127.0.0.1:{asked.port}/v2/health/ready"
    return f"import ssl,urllib.request as r;r.urlopen('{url}',timeout=5{more})"


def compose(asked: EmittedProgram) -> str:
    """Return a file of Compose.

    Raises:
        UsageError: the command cannot run there as it is.
    """
    mounts = _Mounts("/models")
    command = _container(asked, mounts, "/run/secrets")
    secrets = {
        name: {"file": _doubled(Path(asked.context.params[name]).resolve())}
        for name in SECRET
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
        "stop_grace_period": f"{asked.drain_s + EXTRA_S:g}s",
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


def kserve(asked: EmittedProgram) -> str:
    """Return an inference service of KServe; raises as ``compose``."""
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
        "terminationGracePeriodSeconds": int(asked.drain_s + EXTRA_S),
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
