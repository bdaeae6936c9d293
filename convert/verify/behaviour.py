"""Faults of an engine beyond numbers: another interface, another answer the second time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgeinfer.backends.base import Artifact, Executable
from edgeinfer.convert.verify.answers import Vector
from edgeinfer.metrics import compare
from edgeinfer.types import Array


def signature_problems(artifact: Artifact, executable: Executable) -> list[str]:
    """Compare names, types and ranks of what was loaded with the source model's."""
    problems = []
    for role, wanted, got in (
        ("input", artifact.inputs, executable.inputs),
        ("output", artifact.outputs, executable.outputs),
    ):
        found = {s.name: s for s in got}
        for spec in wanted:
            other = found.pop(spec.name, None)
            if other is None:
                problems.append(f"{role} {spec.name!r} is missing")
            elif other.dtype != spec.dtype:
                problems.append(f"{role} {spec.name!r} is {other.dtype} instead of {spec.dtype}")
        problems += [f"{role} {name!r} is not in the source model" for name in found]
    return problems


def repeat_problems(
    first: Sequence[Mapping[str, Array]],
    second: Sequence[Mapping[str, Array]],
    vectors: Sequence[Vector],
) -> list[str]:
    """List outputs that differ in a second run; a last bit may, by the order of threads."""
    for one, two, vector in zip(first, second, vectors, strict=True):
        for name in one:
            metrics = compare(one[name], two[name])
            if metrics.problem or metrics.nonfinite or metrics.mismatches or metrics.max_rel > 1e-5:
                return [
                    f"output {name!r} differs between two runs on the same input "
                    f"({vector.origin}): by {metrics.max_abs:.3g} {metrics.problem}".rstrip()
                ]
    return []
