"""One workload of a model."""

from __future__ import annotations

from dataclasses import field

from edgeinfer.records import dataclass


@dataclass(slots=True)
class Task:
    """A workload, and the kernel that is taken as long as nothing better is known.

    Attributes:
        key: Key of the workload.
        title: for people.
        text: Text of the function, as ``workload.dump`` writes it.
        own: Time of the converter's own kernel, which may lay its weights out in another way.
        parallel: whether there is enough to do for several threads.
        nodes: Nodes of the model that it computes.
        calls: how often a run of the model calls it.
    """

    key: str
    title: str
    text: str
    own: str
    parallel: bool = False
    nodes: list[str] = field(default_factory=list)
    calls: int = 1
