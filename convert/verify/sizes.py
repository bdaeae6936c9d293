"""Sizes for dynamic axes, found by trial: what is declared is often too little, or false."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from edgeinfer.convert.verify.kinds import Kind
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Dim, TensorSpec

Shapes = dict[str, tuple[int, ...]]
"""One static shape for each input, by name."""

Attempt = Callable[[Shapes], bool]
"""Whether the model runs with these shapes."""

# Ordered by how likely a model takes them; the same place in height and width makes a pair.
_CANDIDATES: dict[str, tuple[int, ...]] = {
    "batch": (1, 2, 3, 4),
    "height": (320, 64, 224, 48, 128, 32, 640, 256),
    "width": (320, 96, 224, 320, 128, 32, 640, 256),
    "time": (16000, 24000, 12400, 48000, 43844, 160000, 512, 1024),
    "frame": (512, 256, 1024, 576, 1536, 160, 480, 16000),
    "sequence": (16, 7, 128, 1, 32, 77),
    "other": (16, 32, 8, 64, 7, 1, 4, 2, 3, 10, 76, 100, 128, 256),
}
_MOST_MIXED = 60
_MOST_TRIED = 2048
"""Greatest upper bound that is tried out."""
_BATCH = re.compile(r"batch|^[nb]$", re.IGNORECASE)
_SEQUENCE = re.compile(r"seq|len|tokens", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """Shapes that work.

    Attributes:
        shapes: the first is the base; the others differ from it in dynamic axes.
        note: dynamic axes for which only one size was found; empty when all could be varied.
    """

    shapes: tuple[Shapes, ...]
    note: str = ""


class Axes:
    """The dynamic axes of all inputs, those that must be equal as one."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        kinds: Mapping[str, Kind],
        ranges: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    ) -> None:
        """Group them; ``ranges`` bounds sizes by input name and axis."""
        self._inputs = inputs
        self._streaming = any(k.name == "state" for k in kinds.values())
        self.roles: dict[str, str] = {}
        self._keys: dict[tuple[str, int], str] = {}
        for spec in inputs:
            for axis, dim in enumerate(spec.shape or ()):
                if isinstance(dim, int):
                    continue
                role = self._role(spec, kinds[spec.name], axis, dim)
                key = self._keys[spec.name, axis] = _key(spec, axis, dim, role)
                for part in _parts(key):
                    if self.roles.get(part, "other") == "other":
                        self.roles[part] = role
        self.bounds: dict[str, tuple[int, int]] = {}
        for place, (low, high) in (ranges or {}).items():
            key = self._keys.get(place, "")
            first, last = self.bounds.get(key, (low, high))
            if key in self.roles:
                self.bounds[key] = max(low, first), min(high, last)

    def shapes(self, sizes: Mapping[str, int]) -> Shapes:
        """Fill in sizes by group."""
        return {s.name: tuple(self._fill(s, sizes)) for s in self._inputs}

    def sizes_of(self, feeds: Mapping[str, Array]) -> dict[str, int]:
        """Read sizes by group off given inputs."""
        sizes: dict[str, int] = {}
        for spec in self._inputs:
            for axis, dim in enumerate(spec.shape or ()):
                if spec.name in feeds and not isinstance(dim, int):
                    key = self._keys[spec.name, axis]
                    if key in self.roles:
                        sizes.setdefault(key, feeds[spec.name].shape[axis])
        return sizes

    def candidates(self, key: str) -> tuple[int, ...]:
        """Sizes to try for a group, likeliest first."""
        usual = _CANDIDATES[self.roles[key]]
        if key not in self.bounds:
            return usual
        low, high = self.bounds[key]
        # The far end may be no more than a limit that nobody means to reach.
        ends = (high, low) if high <= _MOST_TRIED else (low,)
        within = tuple(size for size in usual if low <= size <= high)
        return tuple(dict.fromkeys((*within[:1], *ends, *within)))

    def ends(self) -> Iterator[dict[str, int]]:
        """The least sizes that bounds allow, and the greatest unless they are mere limits."""
        if self.bounds:
            yield {key: low for key, (low, _) in self.bounds.items()}
            tried = {k: high for k, (_, high) in self.bounds.items() if high <= _MOST_TRIED}
            if tried:
                yield tried

    def _fill(self, spec: TensorSpec, sizes: Mapping[str, int]) -> Iterator[int]:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, int):
                yield dim
            else:
                yield sum(sizes[p] for p in _parts(self._keys[spec.name, axis]))

    def _role(self, spec: TensorSpec, kind: Kind, axis: int, dim: Dim) -> str:
        if isinstance(dim, str) and _BATCH.search(dim):
            return "batch"
        if kind.name == "state":
            return "other" if isinstance(dim, str) else "batch"
        if kind.name == "image" and axis not in (0, kind.channel_axis):
            spatial = [a for a in range(1, 4) if a != kind.channel_axis]
            return "height" if axis == spatial[0] else "width"
        if kind.name == "audio" and axis == kind.time_axis:
            return "frame" if self._streaming else "time"
        integral = kind.name in ("tokens", "mask", "positions")
        rank = len(spec.shape or ())
        if axis == rank - 1 and integral and (rank > 1 or kind.name != "mask"):
            return "sequence"
        if axis == 0 and rank > 1:
            return "batch"
        return "sequence" if isinstance(dim, str) and _SEQUENCE.search(dim) else "other"


def find_shapes(axes: Axes, attempt: Attempt, known: Mapping[str, int] | None = None) -> Found:
    """Find shapes the model runs with: a base, and others so that each dynamic axis has two sizes.

    Args:
        axes: the dynamic axes.
        attempt: tries shapes out.
        known: sizes of data that is there already; they are the base then.

    Returns:
        No shapes at all when nothing worked.
    """
    base = _base(axes, attempt) if known is None else dict(known)
    if base is None:
        return Found(())
    base = {key: base.get(key, axes.candidates(key)[0]) for key in axes.roles}
    if not axes.roles:
        return Found((axes.shapes(base),))
    for sizes in _all_other(axes, base):
        if attempt(axes.shapes(sizes)):
            return Found((axes.shapes(base), axes.shapes(sizes)))
    found, stuck = [axes.shapes(base)], []
    for key in axes.roles:
        others = (c for c in axes.candidates(key) if c != base[key])
        for size in itertools.islice(others, 5):
            shapes = axes.shapes({**base, key: size})
            if attempt(shapes):
                found.append(shapes)
                break
        else:
            stuck.append(f"{key!r} runs at {base[key]} only, as far as tried")
    note = "declared dynamic: " + "; ".join(stuck) if stuck else ""
    return Found(tuple(found), note)


def _base(axes: Axes, attempt: Attempt) -> dict[str, int] | None:
    longest = max((len(axes.candidates(k)) for k in axes.roles), default=1)
    for place in range(longest):
        sizes = {}
        for key in axes.roles:
            choices = axes.candidates(key)
            alone = axes.roles[key] == "batch" and 1 in choices
            sizes[key] = 1 if alone else choices[place % len(choices)]
        if attempt(axes.shapes(sizes)):
            return sizes
    mixed = itertools.product(*(axes.candidates(key) for key in axes.roles))
    for choice in itertools.islice(mixed, _MOST_MIXED):
        sizes = dict(zip(axes.roles, choice, strict=True))
        if attempt(axes.shapes(sizes)):
            return sizes
    return None


def _all_other(axes: Axes, base: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes that differ from the base in every group, a few likely ones."""
    for place in range(3):
        sizes = {}
        for key in axes.roles:
            others = [c for c in axes.candidates(key) if c != base[key]]
            # A range of a single size has no other.
            sizes[key] = others[min(place, len(others) - 1)] if others else base[key]
        yield sizes


def _key(spec: TensorSpec, axis: int, dim: Dim, role: str) -> str:
    if isinstance(dim, str) and dim not in ("", "?"):
        return dim
    # Axes without a name that look like the batch are one; any other is alone.
    return "batch size" if role == "batch" else f"{spec.name}[{axis}]"


def _parts(key: str) -> list[str]:
    """Split a sum of named sizes, as in ``past + sequence``."""
    parts = [p.strip() for p in key.split("+")]
    return parts if len(parts) > 1 and all(p.isidentifier() for p in parts) else [key]
