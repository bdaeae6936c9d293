"""What is said over gRPC of servers, models and shared memory, and what changes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from edgeinfer.runtime.serve import facts
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.messages import SERVICE
from edgeinfer.runtime.serve.v2 import change

WHOLE = ("", SERVICE)
"""What ``Check`` is asked about where it is no model."""


class RpcFacts:
    """Answers all calls but those that run models.

    Args:
        hub: the models.
        messages: Classes of messages.
    """

    def __init__(self, hub: Hub, messages: Mapping[str, Any]) -> None:
        self._hub, self._messages = hub, messages

    def calls(self) -> dict[str, Callable[[Any], Awaitable[Any]]]:
        """Return what answers each call, by its name."""
        return {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": partial(self._change, "load"),
            "RepositoryModelUnload": partial(self._change, "unload"),
            "SystemSharedMemoryStatus": self._region_status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
        }

    def _of(self, name: str, data: Mapping[str, Any]) -> Any:
        """Return a message of what HTTP answers as JSON; what only JSON has is left out."""
        from google.protobuf import json_format  # type: ignore[import-untyped]

        return json_format.ParseDict(data, self._messages[name](), ignore_unknown_fields=True)

    async def _live(self, _: Any) -> Any:
        return self._messages["ServerLiveResponse"](live=True)

    async def _ready(self, _: Any) -> Any:
        return self._messages["ServerReadyResponse"](ready=self._hub.is_ready)

    async def check(self, request: Any) -> Any:
        """Say whether the server, or a model, takes requests."""
        # 1 is SERVING, 2 is NOT_SERVING.
        name = request.service
        good = self._hub.is_ready if name in WHOLE else facts.known(self._hub, name).is_ready
        return self._messages["HealthCheckResponse"](status=1 if good else 2)

    async def _model_ready(self, request: Any) -> Any:
        model = facts.known(self._hub, request.name, request.version)
        return self._messages["ModelReadyResponse"](ready=model.is_ready)

    async def _server_metadata(self, _: Any) -> Any:
        return self._of("ServerMetadataResponse", facts.server(self._hub))

    async def _model_metadata(self, request: Any) -> Any:
        model = facts.known(self._hub, request.name, request.version)
        return self._of("ModelMetadataResponse", facts.metadata(model))

    async def _model_config(self, request: Any) -> Any:
        model = facts.known(self._hub, request.name, request.version)
        return self._of("ModelConfigResponse", {"config": facts.config(model)})

    async def _model_statistics(self, request: Any) -> Any:
        models = [*self._hub.visible.values()]
        if request.name:
            models = [facts.known(self._hub, request.name, request.version)]
        return self._of("ModelStatisticsResponse", facts.statistics(models))

    async def _repository_index(self, request: Any) -> Any:
        models = facts.index(self._hub, ready=request.ready)
        return self._of("RepositoryIndexResponse", {"models": models})

    async def _change(self, what: str, request: Any) -> Any:
        model = facts.known(self._hub, request.model_name)
        await change(self._hub, model, what, dict(request.parameters))
        return self._messages[f"RepositoryModel{what.title()}Response"]()

    async def _region_status(self, request: Any) -> Any:
        found = await self._hub.on_regions(lambda r, who: r.status(who, request.name))
        regions = {each["name"]: each for each in found}
        return self._of("SystemSharedMemoryStatusResponse", {"regions": regions})

    async def _register(self, request: Any) -> Any:
        given = request.name, request.key, request.offset, request.byte_size
        await self._hub.on_regions(lambda r, who: r.register(who, *given))
        return self._messages["SystemSharedMemoryRegisterResponse"]()

    async def _unregister(self, request: Any) -> Any:
        await self._hub.on_regions(lambda r, who: r.unregister(who, request.name))
        return self._messages["SystemSharedMemoryUnregisterResponse"]()
