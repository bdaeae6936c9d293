"""Every option of a session, once: keywords of ``load`` and options of ``edgeinfer run``."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from edgeinfer.bundle.opening import Opening
from edgeinfer.errors import UsageError
from edgeinfer.options import Section, Value, about, option
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.backends.base import DeviceKind
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.runtime.profiledb import ProfileDB
    from edgeinfer.runtime.select import Policy

OnCrash = Literal["raise", "next"]
Calls = Literal["run", "bind"]

ENGINE = Section("Engine", "edgeinfer run model.edge photo.jpg --device cpu --threads 2")


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions:
    """What decides which engine runs a bundle, and how."""

    backend: str | None = option(
        None, "Use this engine or fail.", ENGINE, "-b", "--backend", value=Value(kind="backend")
    )
    policy: Policy = option(
        "latency",
        "Optimisation goal of the choice between engines. ``latency``, ``throughput``, "
        "``memory`` or ``energy``; for ``throughput`` engines divide their threads among runs "
        "that go on at once; ``explicit`` takes what ``backend`` names, in the bundle's "
        "order, whatever else is faster.",
        ENGINE,
        value=Value(kind="policy"),
    )
    device: DeviceKind | None = option(
        None, "Use this kind of device or fail.", ENGINE, value=Value(kind="device")
    )
    threads: int | None = option(
        None,
        "Number of threads of the engine. None takes what this process may use.",
        ENGINE,
        value=Value(kind="threads"),
    )
    allow: Collection[str] | None = option(
        None,
        "Precision below the model's own that may run where it is faster: bf16, fp16, tf32, int8, "
        "int4 or fp8. Such variants are in a bundle that was converted with --also; each is held "
        "to its budget on the test vectors here too. None takes what EDGEINFER_ALLOW names, with "
        "commas; without either they do not run.",
        ENGINE,
        value=Value("bf16,tf32,...", multiple=True),
    )
    spinning: bool = option(
        False,
        "Let an engine's threads wait for work awake: faster with several threads, harmful in "
        "company. They keep their cores busy, for a while after a run too. ONNX Runtime does so.",
        ENGINE,
    )
    strict: bool = option(
        True,
        "Raise when an accelerator is here but fails, or when operators land on another device "
        "than the one chosen, and name each; otherwise go on with a note.",
    )
    measure: bool | Literal["background"] = option(
        True,
        "Check and time what is not known yet. ``background`` begins at once on what is likely "
        "best, right on one test vector, and goes over to the winner of a race in another thread.",
    )
    isolate: bool = option(
        False,
        "Run the engine in a process of its own. A crash there is an exception here, and the "
        "next run starts it again. Engines known to crash are always run so.",
        ENGINE,
    )
    run_timeout_s: float | None = option(
        None,
        "Stop a run of the isolated engine that takes longer.",
        ENGINE,
        "--run-timeout",
        value=Value("SECONDS", kind="seconds"),
    )
    load_timeout_s: float | None = option(
        None, "Stop an isolated engine that takes longer to look for its devices or to load."
    )
    memory_mb: float | None = option(
        None, "Start an isolated engine again, between two runs, when its process holds more."
    )
    on_crash: OnCrash = option(
        "raise",
        "'next' hands over to the next engine when one crashes twice. The report says so. Both "
        "raise the first time; ``next`` isolates too.",
        ENGINE,
        value=Value(kind="on_crash"),
    )
    calls: Calls = option(
        "run",
        "How the model will be called, ``run`` or ``bind``, which is how engines are timed. Some "
        "engines save much when buffers are bound, others nothing.",
    )
    pooled: bool = option(
        False,
        "Take the memory of runs from a store that all sessions loaded so share. For many models "
        "in one process, where the engine has one (ONNX Runtime on the CPU); it stays with the "
        "process.",
    )

    def decisive(self, threads: int) -> dict[str, object]:
        """Return what decides how fast an engine is, besides what and where it runs."""
        found: dict[str, object] = {"policy": self.policy, "threads": threads}
        found |= {name: True for name in ("isolate", "spinning") if getattr(self, name)}
        return found if self.calls == "run" else {**found, "calls": self.calls}


@dataclass(frozen=True, kw_only=True)
class SessionOptions(ChoiceOptions, Opening):
    """The arguments of ``load``."""

    path: str | os.PathLike[str] | Bundle = field(
        kw_only=False,
        metadata=about("A bundle, a folder or a zip; or an open one, which the session closes."),
    )
    allow_fallback: bool = option(
        False,
        "Let operators run on the CPU, and say which. The same as ``strict=False``.",
        ENGINE,
    )
    history: ProfileDB | None = option(
        None, "Measurements of this machine; None takes those in the cache folder."
    )
    check_finite: bool = option(
        False, "Refuse NaN and infinity in inputs, which looks at every element."
    )
    verify: bool = option(
        True, "Compare every file's hash now; otherwise only those of the files that are used."
    )
    stats: bool | None = option(
        None,
        "Count runs, and report times and failures. For ``Session.stats``, in this process only; "
        "None does so where EDGEINFER_STATS is 1.",
        ENGINE,
        value=Value(kind="flag"),
    )


_STATS = "EDGEINFER_STATS"
"""Set to 1, every session counts without being asked in the code."""


def stats_wanted(stats: bool | None) -> bool:
    """Say whether a session shall count.

    Args:
        stats: what the caller of ``load`` requested; None looks at EDGEINFER_STATS.

    Raises:
        UsageError: the variable is neither 0 nor 1.
    """
    if stats is not None:
        return stats
    value = os.environ.get(_STATS, "0")
    if value not in ("", "0", "1"):
        raise UsageError(f"{_STATS}: expected 0 or 1, received {value!r}")
    return value == "1"
