"""The same server on Ray Serve: copies of it behind Ray's proxies, on one machine or several.

Each replica is a whole server with all models. What one of them knows alone, the others do not:
counters, allowances of keys, and what is loaded. So nothing is loaded or unloaded there.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edgeinfer.bundle.scratch import Scratch
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.records import dataclass
from edgeinfer.runtime.serve.app import App
from edgeinfer.runtime.serve.front import Behind, ClusterFront
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.options import ServeOptions

NAME, BEHIND = "edgeinfer", "replicas"

PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300"}
"""What Ray has for its parts to start: a proxy that is not ready in five seconds is killed, and a
busy machine took more than a minute."""

_MINUTES = 5
"""For which its proxies are waited for: two processors with a load of twenty took more than two."""

_OLDEST = (2, 60)
"""Earlier ones let whoever reaches their ports run programs; from here on they ask for a token."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many copies there are.

    Attributes:
        least: at all times.
        most: as many as the load asks for.
        cpus: CPUs of each, by which Ray places them.
        a_node: most on one node; None for no limit.
    """

    least: int = 1
    most: int = 1
    cpus: float = 1.0
    a_node: int | None = None


_COUNT = re.compile(r"[0-9]{1,6}")


def read_replicas(given: str) -> tuple[int, int]:
    """Read ``COUNT`` or ``LEAST:MOST``.

    Raises:
        UsageError: it is not of that form.
    """
    least, sign, most = given.partition(":")
    if not (_COUNT.fullmatch(least) and (_COUNT.fullmatch(most) if sign else True)):
        raise UsageError(f"replicas {given}: expected COUNT or LEAST:MOST")
    found = int(least), int(most or least)
    if not 1 <= found[0] <= found[1]:
        raise UsageError(f"replicas {given}: expected at least 1, and no fewer at most")
    return found


def check_cluster(options: ServeOptions, replicas: Replicas, hub: Hub) -> None:
    """Raise where copies of a server cannot do what one does.

    Raises:
        UsageError: names what.
        NotAvailableError: Ray is not installed.
    """
    given = {
        "--grpc-port": options.grpc_port is not None,
        "--certificate": options.certificate is not None,
        "--mdns": options.mdns,
        "--shared-memory": bool(options.shared_memory),
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise UsageError(f"--ray: {', '.join(wrong)}: not supported; Ray's proxies answer")
    stateful = [m.name for m in hub.models.values() if m.sequences is not None]
    if stateful and replicas.most > 1:
        raise UsageError(
            f"--ray: {', '.join(stateful)}: sequences live in one replica; give --replicas 1"
        )
    try:
        import ray
        from ray import serve  # noqa: F401
    except ImportError as e:
        raise NotAvailableError(f"--ray needs Ray Serve; {install('ray')}") from e
    if tuple(map(int, ray.__version__.split(".")[:2])) < _OLDEST:
        least = ".".join(map(str, _OLDEST))
        raise NotAvailableError(
            f"--ray needs Ray {least} or newer, which needs a token on its ports, and "
            f"{ray.__version__} is installed; {install('ray')}"
        )


def deployment(
    models: Sequence[str],
    options: ServeOptions,
    replicas: Replicas,
    *,
    trust: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    pipelines: Sequence[str] = (),
) -> Any:
    """Return the application for ``ray.serve.run``.

    Args:
        models: bundles, each ``PATH`` or ``NAME=PATH``, that every node has there.
        options: Options of the server; who may ask is checked in each replica.
        replicas: how many.
        trust: keyword arguments of ``Bundle.open``.
        text: keyword arguments of ``LLM``.
        pipelines: several bundles that are one, each ``NAME=PATH,PATH``.
    """
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    config: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.most > replicas.least:
        config = {
            "autoscaling_config": {
                "min_replicas": replicas.least,
                "max_replicas": replicas.most,
            }
        }
    router = f"{__name__.rpartition('.')[0]}.routing.PlaceRouter"
    behind = serve.deployment(
        Replica,
        name=BEHIND,
        ray_actor_options={"num_cpus": replicas.cpus},
        max_ongoing_requests=options.limits.queue,
        graceful_shutdown_timeout_s=options.limits.drain_s,
        max_replicas_per_node=replicas.a_node,
        request_router_config=RequestRouterConfig(request_router_class=router),
        **config,
    ).bind(models, replace(options, replicated=True), trust, text, pipelines)

    def build() -> ClusterFront:
        return front(options)

    before = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        num_replicas=1,
        # It goes where the first proxy is: who reaches that one loses nothing with another node.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        max_ongoing_requests=options.limits.queue * max(1, replicas.most),
        graceful_shutdown_timeout_s=options.limits.drain_s,
    )
    return before.bind(behind)


def front(options: ServeOptions) -> ClusterFront:
    """Return what asks the replicas."""
    from ray import serve
    from ray.exceptions import RayActorError

    handle = serve.get_deployment_handle(BEHIND, app_name=NAME)
    parts = handle.answer.options(stream=True)

    def ask(given: dict[str, Any], body: bytes, place: str) -> Any:
        return parts.remote(given, body, place=place)

    return ClusterFront(options, ask, (RayActorError,))


class Replica:
    """A whole server in a process of Ray's.

    Args:
        models: bundles, each ``PATH`` or ``NAME=PATH``.
        options: Options of the server.
        trust: keyword arguments of ``Bundle.open``.
        text: keyword arguments of ``LLM``.
        pipelines: several bundles that are one.

    Raises:
        RuntimeError: a model is not ready.
    """

    def __init__(
        self,
        models: Sequence[str],
        options: ServeOptions,
        trust: Mapping[str, Any] | None,
        text: Mapping[str, Any] | None,
        pipelines: Sequence[str],
    ) -> None:
        import ray

        hub = Hub(models, options, trust, text, pipelines)
        # A replica takes requests when its models do.
        hub.loader.load_all(hub.models.values())
        if problems := [f"{m.name}: {m.state}" for m in hub.models.values() if not m.is_ready]:
            raise RuntimeError("; ".join(problems))
        node = ray.get_runtime_context().get_node_id()
        self._behind = Behind(App(hub, loads=False, replica=f"{node[:12]}-{os.getpid()}"))

    async def answer(self, given: dict[str, Any], body: bytes, place: str) -> AsyncIterator[Any]:
        """Yield parts of an answer, lists of messages; by ``place`` the replica was chosen."""
        async for part in self._behind.answer(given, body):
            yield part


def serve_cluster(
    models: Sequence[str],
    options: ServeOptions,
    replicas: Replicas,
    *,
    started: Callable[[str], None] | None = None,
    **more: Any,
) -> None:
    """Serve on the cluster that ``RAY_ADDRESS`` names, or on one started here, until SIGTERM.

    Args:
        models: as for ``deployment``.
        options: Options of the server.
        replicas: how many.
        started: is called with the address when requests are taken.
        **more: as for ``deployment``.

    Raises:
        UsageError: copies of a server cannot do what was asked.
        NotAvailableError: Ray is not installed.
    """
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    hub = Hub(models, options, more.get("trust"), more.get("text"), more.get("pipelines", ()))
    try:
        check_cluster(options, replicas, hub)
    finally:
        hub.close()
    import ray
    from ray import serve

    ended = threading.Event()
    with contextlib.ExitStack() as kept:
        if "RAY_ADDRESS" in os.environ:
            ray.init(log_to_driver=False)
        else:
            _start_locally(kept.enter_context(_private()))
        kept.callback(ray.shutdown)
        _start_proxies(
            partial(serve.start, http_options={"host": options.host, "port": options.port})
        )
        serve.run(deployment(models, options, replicas, **more), name=NAME, route_prefix="/")
        # Last, because Ray has handlers of its own, which abort.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        if started is not None:
            started(f"http://{options.host}:{options.port}")
        ended.wait()
        serve.delete(NAME)


def _start_proxies(start: Callable[[], object]) -> None:
    """Start Ray's proxies, which have a minute for it that cannot be set: busy boards take longer.

    What was begun goes on meanwhile, and the next start finds it.
    """
    for _ in range(_MINUTES - 1):
        with contextlib.suppress(TimeoutError):
            start()
            return
    start()


def _private() -> Scratch:
    # Paths of sockets end at 107 bytes, and Ray's own part takes 65.
    is_short = len(tempfile.gettempdir()) <= 20
    return Scratch(within=None if is_short else Path("/tmp"))


def _start_locally(folder: Path) -> None:
    """Start a node of Ray whose files lie where no other user of the machine gets."""
    import ray

    # Ray lets everybody write its folders, so one around them keeps others out. The dashboard would
    # let whoever reaches it run programs.
    ray.init("local", log_to_driver=False, include_dashboard=False, _temp_dir=str(folder / "ray"))
