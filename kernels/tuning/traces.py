"""What a record's order of loops may consist of: what the search writes, and nothing that is code.

TVM applies any instruction that a trace names. An annotation may become an attribute of its code
generator, and a few of these (``pragma_import_llvm``, ``pragma_import_c``) are programs; so are the
intrinsics that ``Tensorize`` names. Records come from anybody.
"""

from __future__ import annotations

import re
from typing import Any

_KINDS = frozenset(
    {
        *("AddUnitLoop", "Annotate", "Bind", "CacheRead", "CacheWrite", "ComputeAt"),
        *("ComputeInline", "DecomposeReduction", "EnterPostproc", "Fuse", "GetChildBlocks"),
        *("GetConsumers", "GetLoops", "GetOutputBlocks", "GetProducers", "GetSBlock", "Parallel"),
        *("RFactor", "Reorder", "ReverseComputeAt", "ReverseComputeInline", "SampleCategorical"),
        *("SampleComputeLocation", "SamplePerfectTile", "Split", "StorageAlign", "Unannotate"),
        *("Unroll", "Vectorize"),
    }
)
"""Instructions that MetaSchedule's rules for CPUs and GPUs write (TVM 0.27)."""

_UNROLLED = "pragma_auto_unroll_max_step"
_TILING = "meta_schedule.tiling_structure"

_KEYS = frozenset(
    {
        *(_TILING, _UNROLLED, "pragma_unroll_explicit"),
        *("meta_schedule.cooperative_fetch", "meta_schedule.parallel", "meta_schedule.vectorize"),
        *("meta_schedule.random_compute_producer", "meta_schedule.unroll_explicit"),
        *("meta_schedule.thread_extent_high_inclusive", "meta_schedule.unroll_implicit"),
        *("meta_schedule.thread_extent_low_inclusive", "software_pipeline_async_stages"),
        *("software_pipeline_order", "software_pipeline_stage"),
    }
)
"""Annotations that they write."""

_WORDS = {
    "Annotate": _KEYS,
    "Unannotate": _KEYS,
    "Bind": frozenset(f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz")
    | {"vthread", "vthread.x", "vthread.y", "vthread.z"},
    "CacheRead": frozenset({"global", "local", "shared", "shared.dyn"}),
    "CacheWrite": frozenset({"global", "local", "shared", "shared.dyn"}),
}
"""Words among the attributes of an instruction; names of blocks are any."""

_NAME = re.compile(r"\w{1,200}", re.ASCII)
_VARIABLE = re.compile(r"[a-z]{1,3}\d{1,9}|None", re.ASCII)
_STRUCTURE = re.compile(r'"[SR]{1,32}"')

_MOST_STEPS, _MOST_UNROLLED, _DEEPEST = 10_000, 4096, 3
_LARGEST = 1 << 40


def check(trace: Any) -> None:
    """Refuse an order with anything in it that the search does not write.

    Raises:
        ValueError: it has; says what.
    """
    if not isinstance(trace, list) or [type(part) for part in trace] != [list, list]:
        raise ValueError("the order is no trace")
    steps, decisions = trace
    if len(steps) > _MOST_STEPS:
        raise ValueError(f"the order has more than {_MOST_STEPS} steps")
    for step in steps:
        if not isinstance(step, list) or [type(p) for p in step] != [str, list, list, list]:
            raise ValueError("a step of the order is no instruction")
        _check_step(*step)
    if not _is_plain(decisions, 0, variables=False):
        raise ValueError("its decisions are not numbers")


def _check_step(kind: str, inputs: list[Any], attributes: list[Any], outputs: list[Any]) -> None:
    if kind not in _KINDS:
        raise ValueError(f"the order has the step {kind[:40]!r}, which no search of ours writes")
    words = [a for a in attributes if isinstance(a, str)]
    if kind == "GetSBlock":
        known = all(_NAME.fullmatch(word) for word in words)
    else:
        known = _WORDS.get(kind, frozenset()).issuperset(words)
    numbers = [a for a in attributes if not isinstance(a, str)]
    if not known or not _is_plain(numbers, 0, variables=False):
        text = str(attributes)[:60]
        raise ValueError(f"the order has {kind} of {text}, which no search of ours writes")
    if kind == "Annotate" and words == [_TILING] and _is_structure(inputs):
        inputs = inputs[:-1]
    most = _MOST_UNROLLED if words == [_UNROLLED] else _LARGEST
    if not _is_plain([inputs, outputs], 0, variables=True, most=most):
        raise ValueError(f"the order has {kind} with values, which no search of ours writes")


def _is_structure(inputs: list[Any]) -> bool:
    return bool(inputs) and isinstance(inputs[-1], str) and bool(_STRUCTURE.fullmatch(inputs[-1]))


def _is_plain(value: Any, depth: int, *, variables: bool, most: float = _LARGEST) -> bool:
    """Whether there are only numbers, and variables of the trace."""
    if isinstance(value, list):
        return depth <= _DEEPEST and all(
            _is_plain(part, depth + 1, variables=variables, most=most) for part in value
        )
    if isinstance(value, str):
        return variables and bool(_VARIABLE.fullmatch(value))
    return value is None or (isinstance(value, int | float) and abs(value) <= most)
