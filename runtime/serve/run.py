"""Start the server on a socket, and end it in good order."""

from __future__ import annotations

import importlib.util
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeinfer.bounded import open_file
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.machine.pages import keep_freed, share_heaps
from edgeinfer.runtime.serve.announce import check_announcing
from edgeinfer.runtime.serve.options import ServeOptions

_BACKLOG = 2048
_LOOP = "asyncio" if sys.platform == "win32" else "uvloop"
_MODULES = ("uvicorn", _LOOP, "httptools", "orjson", "prometheus_client")


def check_installed(*, grpc: bool = False) -> None:
    """Raise where a package of the extra is missing.

    Args:
        grpc: those for gRPC too.

    Raises:
        NotAvailableError: names it, with the line that installs it.
    """
    wanted = (*_MODULES, "grpc", "google.protobuf") if grpc else _MODULES
    missing = [name for name in wanted if not _is_there(name)]
    if missing:
        raise NotAvailableError(f"serving needs {', '.join(missing)}; {install('serve')}")


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def serve(
    models: Sequence[str],
    options: ServeOptions,
    *,
    trust: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    pipelines: Sequence[str] = (),
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests under way are answered first.

    Args:
        models: bundles, each ``PATH`` or ``NAME=PATH``.
        options: Options of the server.
        trust: keyword arguments of ``Bundle.open``.
        text: keyword arguments of ``LLM``.
        pipelines: several bundles that are one, each ``NAME=PATH,PATH``.
        started: is called with the address when connections are taken.

    Raises:
        NotAvailableError: a package is missing.
        UsageError: the port is taken, or two models have one name.
        BundleError: a bundle is damaged.
    """
    share_heaps()
    keep_freed()
    check_installed(grpc=options.grpc_port is not None)
    if options.mdns:
        check_announcing()
    import uvicorn

    from edgeinfer.runtime.serve.app import App
    from edgeinfer.runtime.serve.hub import Hub
    from edgeinfer.runtime.serve.protocol import protocol

    tls = tls_of(options)
    listening = _listen(options.host, options.port)
    try:
        app = App(hub := Hub(models, options, trust, text, pipelines))
        limits, patience = options.limits, (hub.memory, options.limits.body_s)
        config = uvicorn.Config(
            app,
            loop=_LOOP,
            http=protocol(limits.head_s, app.fast, tls, patience),
            ws="none",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(limits.drain_s)),
        )
        # Who connects from now on waits for the loop to begin, and is not refused.
        listening.listen(_BACKLOG)
        if started is not None:
            host, port = listening.getsockname()[:2]
            scheme = "https" if options.certificate else "http"
            address = f"[{host}]" if ":" in host else host
            more = "" if options.grpc_port is None else f", gRPC at {address}:{options.grpc_port}"
            started(f"{scheme}://{address}:{port}{more}")
        uvicorn.Server(config).run(sockets=[listening])
        if app.rpc is not None and app.rpc.problem is not None:
            raise app.rpc.problem
    finally:
        listening.close()


def tls_of(options: ServeOptions) -> ssl.SSLContext | None:
    """Return the certificate and its key, made ready; None where none are given.

    Raises:
        UsageError: a file cannot be read, or holds something else.
    """
    if options.certificate is None or options.private_key is None:
        return None
    for path in (options.certificate, options.private_key):
        try:
            # OpenSSL, which takes their names, would wait for pipes.
            open_file(path).close()
        except OSError as e:
            raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        found.load_cert_chain(options.certificate, options.private_key)
    except ssl.SSLError as e:
        name = options.certificate.name
        raise UsageError(f"{name}: no certificate with this key, in PEM: {e.reason}") from e
    return found


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family)
    except OSError as e:
        raise UsageError(f"{host}: no address to listen on: {e}") from e
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as e:
        listening.close()
        raise UsageError(f"{host} port {port}: {e.strerror or e}; give another --port") from e
    return listening
