"""Which replica of a cluster answers: who has read how a text begins, while there is room."""

from __future__ import annotations

import hashlib
from typing import Any

from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.request_router import (
    LocalityMixin,
    MultiplexMixin,
    RequestRouter,
)


class PlaceRouter(LocalityMixin, MultiplexMixin, RequestRouter):  # type: ignore[misc]
    """Takes the replica that a request's place falls to, and others where that one is full.

    A place falls to the replica with the highest hash of both (rendezvous hashing), so that one
    that goes moves nobody else's requests.
    """

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Return replicas in the order in which they are to be tried."""
        others: list[list[Any]] = await PowerOfTwoChoicesRequestRouter.choose_replicas(
            self, candidate_replicas, pending_request
        )
        place = "" if pending_request is None else pending_request.kwargs.get("place", "")
        if not place or not candidate_replicas:
            return others
        best = max(candidate_replicas, key=lambda replica: _rank(place, str(replica.replica_id)))
        return [[best], *others]


def _rank(place: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{place} {replica}".encode(), digest_size=8).digest()
