"""Options of a server: where it listens, who may ask, and how much."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from edgeinfer.bounded import read_bounded, split_address
from edgeinfer.errors import UsageError
from edgeinfer.origins import is_loopback
from edgeinfer.records import dataclass

KEYS_ENV = "EDGEINFER_SERVE_KEYS"
"""Keys, separated by commas, where no file is given."""

MOST_KEYS = 1 << 20
"""Bytes of a file of keys or certificates."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Of a model."""

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FALLBACK = re.compile(rf"({NAME.pattern})=({NAME.pattern})(?::([1-9][0-9]{{0,8}}))?")
_RATE = re.compile(r"([0-9]{1,12})/(s|min|h)")
_TERMS = ("name", "models", "requests", "tokens", "priority")
"""What a line may say of its key."""

_WHOLE = re.compile(r"[0-9]{1,9}")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in so much time.

    Attributes:
        count: at least 1.
        seconds: in which they may be used up.
    """

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key, and what it lets in.

    Attributes:
        secret: the key itself.
        name: in the log; empty for none.
        models: names that it may use; empty for all.
        requests: that it may make; None for no limit.
        tokens: Tokens of texts, read and written, that it may use; None for no limit.
        priority: how far its requests may be put before others; None for any distance where there
            is no other key, and else for none.
    """

    secret: str = field(repr=False)
    name: str = ""
    models: frozenset[str] = frozenset()
    requests: Rate | None = None
    tokens: Rate | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request and all together may take.

    Attributes:
        body_bytes: largest body of a request.
        json_bytes: largest JSON of one.
        memory_bytes: that all requests together may take; one alone may take more.
        head_s: seconds in which the head of a request must have come.
        body_s: seconds in which a body must have come.
        elements: largest count of elements of one tensor.
        queue: requests of one model that may wait; more get status 429.
        wait_s: seconds that a request may wait for its answer; None for no limit.
        drain_s: seconds that requests under way get when the server stops.
        sequences: Sequences of one model with states that may be under way.
        sequence_idle_s: seconds without a step after which a sequence is forgotten.
    """

    body_bytes: int = 64 << 20
    json_bytes: int = 8 << 20
    memory_bytes: int = 1 << 30
    head_s: float = 10.0
    body_s: float = 30.0
    elements: int = 1 << 26
    queue: int = 512
    wait_s: float | None = None
    drain_s: float = 5.0
    sequences: int = 1024
    sequence_idle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve.

    Attributes:
        host: address to listen on; loopback unless said otherwise.
        port: TCP port; 0 takes a free one.
        grpc_port: TCP port of gRPC; 0 takes a free one, None serves none.
        keys: any of them lets a request in, each as ``read_key`` reads it; none asks for no key.
        insecure: listen on other addresses than loopback without a key.
        threads: that run engines; None for all cores this process may use.
        memory_mb: that tensor models may take together; None for no limit.
        batch: most requests of a tensor model in one run; fewer where they gain nothing, and 1
            turns batching off.
        limits: Limits of requests.
        isolate: run engines of tensor models in processes of their own.
        run_timeout_s: that a run of such an engine may take, and its load; None for any time.
        allow: precisions below their own that tensor models may run in; None takes those of
            EDGEINFER_ALLOW.
        cors: origins whose pages may read answers; none by default.
        certificate: PEM file for TLS; None for plain HTTP.
        private_key: PEM file of the certificate's key.
        mdns: tell the local network where the server is.
        upstreams: models of other servers, each as ``read_upstream`` reads it.
        fallbacks: models that answer for others, each as ``read_fallback`` reads it.
        replicated: one of several copies: it loads and announces nothing that belongs to one alone.
        answers_mb: Megabytes of answers of tensor models that are kept for the same
            inputs; 0 for none.
        shared_memory: Begin of the names of objects of shared memory that clients of this machine
            may hand tensors over in; empty for none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    keys: tuple[str, ...] = ()
    insecure: bool = False
    threads: int | None = None
    memory_mb: float | None = None
    batch: int = 16
    limits: RequestLimits = field(default_factory=RequestLimits)
    isolate: bool = False
    run_timeout_s: float | None = None
    allow: tuple[str, ...] | None = None
    cors: tuple[str, ...] = ()
    certificate: Path | None = None
    private_key: Path | None = None
    mdns: bool = False
    upstreams: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    answers_mb: float = 0.0
    replicated: bool = False
    shared_memory: str = ""

    def __post_init__(self) -> None:
        for port in (self.port, self.grpc_port or 0):
            if not 0 <= port <= 65535:
                raise UsageError(f"port: expected 0 to 65535, received {port}")
        if self.port and self.port == self.grpc_port:
            raise UsageError(f"port {self.port}: HTTP and gRPC need one each")
        if self.batch < 1:
            raise UsageError(f"batch: expected at least 1, received {self.batch}")
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS needs both a certificate and its private key")
        if self.shared_memory and not _PREFIX.fullmatch(self.shared_memory):
            raise UsageError(
                f"shared memory: expected letters, digits, '.', '_', '-' as the begin of names, "
                f"received {self.shared_memory!r}"
            )
        for key in self.keys:
            read_key(key)
        if self.mdns and (is_loopback(self.host) or not self.port):
            raise UsageError("mdns: only a --host and a --port that others reach can be announced")
        if not (self.keys or self.insecure or is_loopback(self.host)):
            raise UsageError(
                f"{self.host} is open to other machines: give keys (--keys FILE, {KEYS_ENV}), "
                "or --insecure to let everybody in"
            )


def keys_of(file: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Read keys, one a line, ``#`` begins a comment; without a file those of the environment.

    Raises:
        UsageError: the file cannot be read or has none.
    """
    if file is None:
        given = os.environ.get(KEYS_ENV, "").split(",")
        return tuple(key.strip() for key in given if key.strip())
    try:
        lines = read_bounded(Path(file), MOST_KEYS).decode().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{file}: cannot read keys: {e}") from e
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise UsageError(f"{file}: has no keys")
    return keys


def read_key(line: str) -> AccessKey:
    """Read ``KEY [name=…] [models=a,b] [requests=10/s] [tokens=20000/min] [priority=5]``.

    Raises:
        UsageError: it is not of that form, or the key is short.
    """
    secret, *terms = line.split()
    if len(secret) < 16:
        raise UsageError("a key has fewer than 16 characters, so it could be guessed")
    parts = (term.partition("=") for term in terms)
    given = {name: value for name, _, value in parts}
    if unknown := sorted(given.keys() - set(_TERMS)):
        # The rest of the line may be a key.
        raise UsageError(f"a key: {len(unknown)} unknown terms; known: {', '.join(_TERMS)}")
    models = frozenset(filter(None, given.get("models", "").split(",")))
    if "models" in given and not models:
        raise UsageError("a key: models: expected names, separated by commas")
    rates = {name: _rate(name, given[name]) for name in ("requests", "tokens") if name in given}
    ahead = given.get("priority")
    if ahead is not None and not _WHOLE.fullmatch(ahead):
        raise UsageError(f"a key: priority={ahead}: expected a whole number, as in 5")
    priority = None if ahead is None else int(ahead)
    return AccessKey(secret, given.get("name", ""), models, **rates, priority=priority)


def _rate(name: str, given: str) -> Rate:
    found = _RATE.fullmatch(given)
    if found is None or not int(found[1]):
        raise UsageError(f"a key: {name}={given}: expected as in 10/s, 600/min or 1000/h")
    return Rate(int(found[1]), _SECONDS[found[2]])


def model_name(given: str) -> tuple[str, str]:
    """Split ``NAME=BUNDLE`` or take the file's stem as the name.

    Raises:
        UsageError: the name has characters that are not for addresses.
    """
    name, sign, path = given.partition("=")
    if not sign:
        name, path = Path(given).name.removesuffix(".edge"), given
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{given}: {name!r} is no name for a model (letters, digits, '.', '_', '-'); "
            "give NAME=BUNDLE"
        )
    return name, path


def pipeline_name(given: str) -> tuple[str, tuple[Path, ...]]:
    """Split ``NAME=BUNDLE,BUNDLE``.

    Raises:
        UsageError: it is not of that form.
    """
    name, sign, paths = given.partition("=")
    found = tuple(Path(path) for path in paths.split(",") if path)
    if not (sign and NAME.fullmatch(name) and len(found) > 1):
        raise UsageError(f"{given}: expected NAME=BUNDLE,BUNDLE of bundles that work together")
    return name, found


@dataclass(frozen=True, slots=True)
class Upstream:
    """A model of another server.

    Attributes:
        url: up to and with ``/v1``.
        model: its name there.
        key: that is sent; empty for none.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)


def read_upstream(given: str) -> tuple[str, Upstream]:
    """Read ``NAME=URL[#MODEL]``; the key is in the environment, in ``EDGEINFER_UPSTREAM_KEY_NAME``.

    Raises:
        UsageError: it is not of that form, a key would go over plain HTTP to another machine, or
            cannot be sent.
    """
    name, sign, url = given.partition("=")
    try:
        parts = split_address(url)
    except ValueError as e:
        raise UsageError(f"{given}: {e}") from e
    if not (sign and NAME.fullmatch(name) and parts.scheme in ("http", "https") and parts.hostname):
        raise UsageError(f"{given}: expected NAME=URL[#MODEL] with http:// or https://")
    if parts.username or parts.password or parts.query:
        raise UsageError(
            f"{name}: a key belongs into {upstream_variable(name)}, not into the address"
        )
    key = os.environ.get(upstream_variable(name), "")
    if key and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UsageError(f"{name}: its key would go over plain HTTP to {parts.hostname}")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{name}: its key in {upstream_variable(name)} is not plain ASCII")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    base = base if base.endswith("/v1") else f"{base}/v1"
    return name, Upstream(base, parts.fragment or name, key)


def read_upstreams(given: Sequence[str]) -> list[tuple[str, Upstream]]:
    """Read all models of other servers, each as ``read_upstream``.

    Raises:
        UsageError: as there, or a key would go to two addresses.
    """
    found = [read_upstream(each) for each in given]
    owners: dict[str, tuple[str, Upstream]] = {}
    for name, upstream in found:
        variable = upstream_variable(name)
        other, known = owners.setdefault(variable, (name, upstream))
        if upstream.key and upstream.url != known.url:
            raise UsageError(
                f"{other}, {name}: both have their key in {variable}, and it would go to "
                f"{known.url} and {upstream.url}; give one another name"
            )
    return found


def upstream_variable(name: str) -> str:
    """Return the variable of the environment that holds a key of another server."""
    return f"EDGEINFER_UPSTREAM_KEY_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"


def read_fallback(given: str) -> tuple[str, str, int | None]:
    """Read ``NAME=OTHER[:COUNT]``: from how many requests without an answer OTHER answers.

    Raises:
        UsageError: it is not of that form.
    """
    found = _FALLBACK.fullmatch(given)
    if found is None:
        raise UsageError(f"{given}: expected NAME=OTHER or NAME=OTHER:COUNT of models here")
    return found[1], found[2], int(found[3]) if found[3] else None
