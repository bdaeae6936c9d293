"""The server's name in the local network, by multicast DNS (RFC 6762, RFC 6763)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgeinfer._version import __version__
from edgeinfer.errors import NotAvailableError
from edgeinfer.installed import install

if TYPE_CHECKING:
    from edgeinfer.runtime.serve.options import ServeOptions

KIND = "_http._tcp.local."
"""Browsers of services know it; programs look for ``path=/v2`` in its texts."""

PATIENCE_S = 30.0
"""Seconds in which a name has to be found that nobody else has; a network may refuse them all."""

_log = logging.getLogger("edgeinfer.serve")


def check_announcing() -> None:
    """Raise where the package is missing.

    Raises:
        NotAvailableError: with the line that installs it.
    """
    try:
        import zeroconf  # noqa: F401
    except ImportError as e:
        raise NotAvailableError(f"--mdns needs zeroconf; {install('mdns')}") from e


class Announcement:
    """Tells the local network where the server is, while it runs.

    It is a convenience: a network that does not take it keeps no server from serving.

    Args:
        options: Options of the server.
        interfaces: addresses to tell it at; None for all but loopback.
    """

    def __init__(self, options: ServeOptions, interfaces: Sequence[str] | None = None) -> None:
        self._options, self._interfaces = options, interfaces
        self._network: Any = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start while the server does its work; where it fails, the log says why."""
        self._task = asyncio.get_running_loop().create_task(self._started())

    async def _started(self) -> None:
        try:
            await asyncio.wait_for(self.start(), PATIENCE_S)
        except Exception as e:
            why = f"no name was free in {PATIENCE_S:g} s" if isinstance(e, TimeoutError) else e
            _log.warning("this server is not announced in the local network: %s", why)
            await self._closed()

    async def start(self) -> None:
        """Announce; where the name is taken, with a number behind it."""
        from zeroconf import InterfaceChoice, ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf

        options = self._options
        host = socket.gethostname().partition(".")[0]
        texts = {
            "path": "/v2",
            "version": __version__,
            "scheme": "http" if options.certificate is None else "https",
            "key": "yes" if options.keys else "no",
        }
        if options.grpc_port:
            texts["grpc"] = str(options.grpc_port)
        info = ServiceInfo(
            KIND,
            f"edgeinfer on {host}.{KIND}",
            parsed_addresses=self._addresses(),
            port=options.port,
            properties=texts,
            server=f"{host}.local.",
        )
        interfaces = self._interfaces or InterfaceChoice.Default
        self._network = AsyncZeroconf(interfaces=interfaces)
        await self._network.async_register_service(info, allow_name_change=True)

    async def stop(self) -> None:
        """Take it back."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._network is not None:
            await self._network.async_unregister_all_services()
        await self._closed()

    async def _closed(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            await network.async_close()

    def _addresses(self) -> list[str]:
        if self._interfaces is not None:
            return list(self._interfaces)
        if self._options.host not in ("0.0.0.0", "::"):
            return [socket.gethostbyname(self._options.host)]
        import ifaddr

        found = [ip for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
        return [str(ip.ip) for ip in found if not str(ip.ip).startswith("127.")]
