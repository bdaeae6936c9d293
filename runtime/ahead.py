"""Engines that a backend builds on this machine before anything runs, and their shapes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edgeinfer.backends import registry
from edgeinfer.backends.base import (
    Artifact,
    Backend,
    BuildsAhead,
    DeviceKind,
    LoadOptions,
    ShapeRange,
)
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.cache import cache_root, writable_folder
from edgeinfer.bundle.manifest import Variant
from edgeinfer.errors import BackendError, InputError, NotAvailableError, UsageError
from edgeinfer.types import TensorSpec

Progress = Callable[[str, float | None], None]

_VECTORS = 8
"""Test vectors whose shapes are looked at where nobody named any."""


@dataclass(frozen=True, slots=True)
class Built:
    """One engine.

    Attributes:
        variant: id of the variant.
        backend: that builds it.
        state: ``built``, ``current``, ``stale`` (only looked at) or ``failed``.
        detail: why it had to be built, or why it failed.
        seconds: that building took.
        folder: where it is.
        size_bytes: of its files.
    """

    variant: str
    backend: str
    state: str
    detail: str = ""
    seconds: float = 0.0
    folder: Path | None = None
    size_bytes: int = 0


def artifact_of(bundle: Bundle, variant: Variant) -> Artifact:
    """Describe a variant for a backend; its files are unpacked where they have to be.

    Raises:
        BundleError: a file is altered.
    """
    manifest, path = bundle.manifest, bundle.paths(variant)[0]
    return Artifact(variant.format, path, manifest.inputs, manifest.outputs, variant.precision)


def engine_shapes(bundle: Bundle, variant: Variant, backend: str) -> dict[str, ShapeRange]:
    """Return the shapes that an engine is for; empty where the backend builds none.

    They are those that were named when it was built, else those of the test vectors.

    Raises:
        BundleError: a vector is altered.
    """
    open_inputs = [spec for spec in bundle.manifest.inputs if not spec.is_static]
    if not open_inputs or not isinstance(registry.get(backend), BuildsAhead):
        return {}
    known = _remembered(variant)
    return known if known is not None else _of_vectors(bundle, open_inputs)


def build_engines(
    bundle: Bundle,
    *,
    backend: str | None = None,
    shapes: Mapping[str, ShapeRange] | None = None,
    check_only: bool = False,
    progress: Progress | None = None,
) -> tuple[Built, ...]:
    """Build every engine of a bundle that is not current.

    Args:
        bundle: open.
        backend: only this one.
        shapes: of inputs with open sizes; remembered for later loads. None keeps what was named
            before, or takes the shapes of the test vectors.
        check_only: only say what is current.
        progress: told what is being done.

    Raises:
        NotAvailableError: no backend of the bundle builds engines here; says why for each.
        UsageError: a backend builds none, or shapes do not fit the model.
        BundleError: a file is altered.
    """
    if backend is not None and not isinstance(registry.get(backend), BuildsAhead):
        raise UsageError(f"backend {backend!r} builds no engines ahead; it needs none")
    for name, wanted in (shapes or {}).items():
        _check_shape(bundle.manifest.inputs, name, wanted)
    found, reasons = [], []
    for variant, builder in _builders(bundle, backend):
        probe = builder.probe()
        if not probe.available:
            reasons.append(f"{builder.name}: {probe.reason}")
            continue
        if shapes and not check_only:
            _remember(variant, shapes)
        kind = probe.devices[0].kind
        found.append(_one(bundle, variant, builder, kind, check_only, progress))
    if not found:
        why = "; ".join(dict.fromkeys(reasons)) or "it has no variant for a backend that builds one"
        raise NotAvailableError(f"{bundle.location}: no engine can be built here: {why}")
    return tuple(found)


def _builders(bundle: Bundle, backend: str | None) -> Iterator[tuple[Variant, Backend]]:
    seen = set()
    for variant in bundle.manifest.variants:
        for engine in variant.engines:
            key = engine.backend, tuple(f.sha256 for f in variant.files)
            if backend not in (None, engine.backend) or key in seen:
                continue
            seen.add(key)
            builder = registry.get(engine.backend)
            if isinstance(builder, BuildsAhead):
                yield variant, builder


def _one(
    bundle: Bundle,
    variant: Variant,
    builder: Backend,
    kind: DeviceKind,
    check_only: bool,
    progress: Progress | None,
) -> Built:
    if not isinstance(builder, BuildsAhead):
        raise TypeError(builder.name)
    artifact = artifact_of(bundle, variant)
    try:
        options = LoadOptions(device=kind, shapes=engine_shapes(bundle, variant, builder.name))
        why = builder.unbuilt(artifact, options)
        if why and check_only:
            return Built(variant.id, builder.name, "stale", why)
        if why and progress is not None:
            progress(f"build the engine of {variant.id}: {why}", None)
        start = time.monotonic()
        folder = None if check_only else builder.build(artifact, options)
    except (BackendError, InputError) as e:
        return Built(variant.id, builder.name, "failed", str(e))
    seconds = time.monotonic() - start if why else 0.0
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder else 0
    state = "built" if why else "current"
    return Built(variant.id, builder.name, state, why, seconds, folder, size)


def _check_shape(inputs: tuple[TensorSpec, ...], name: str, wanted: ShapeRange) -> None:
    spec = next((s for s in inputs if s.name == name), None)
    if spec is None:
        names = ", ".join(repr(s.name) for s in inputs)
        raise UsageError(f"shape of {name!r}: the model has no such input; it has {names}")
    low, usual, high = wanted
    if not len(low) == len(usual) == len(high):
        raise UsageError(f"shape of {name!r}: the three shapes have different numbers of axes")
    for axis, sizes in enumerate(zip(low, usual, high, strict=True)):
        if not 0 < sizes[0] <= sizes[1] <= sizes[2]:
            text = ", ".join(map(str, sizes))
            raise UsageError(f"shape of {name!r}: sizes of axis {axis} do not grow: {text}")
    if spec.shape is None:
        return
    fixed = [(a, d) for a, d in enumerate(spec.shape) if isinstance(d, int)]
    if len(spec.shape) != len(low) or any(w[a] != d for w in wanted for a, d in fixed):
        raise UsageError(f"shape of {name!r}: does not fit the model's {spec}")


def _of_vectors(bundle: Bundle, inputs: list[TensorSpec]) -> dict[str, ShapeRange]:
    found: dict[str, ShapeRange] = {}
    for feeds, _ in islice(bundle.vectors(), _VECTORS):
        for spec in inputs:
            shape = tuple(feeds[spec.name].shape)
            low, usual, high = found.get(spec.name, (shape, shape, shape))
            if len(shape) != len(low):
                continue
            smallest = tuple(map(min, low, shape))
            found[spec.name] = smallest, usual, tuple(map(max, high, shape))
    return found


def _place(variant: Variant) -> str:
    digest = hashlib.sha256("\n".join(f.sha256 for f in variant.files).encode())
    return f"{digest.hexdigest()[:32]}.json"


def _remember(variant: Variant, shapes: Mapping[str, ShapeRange]) -> None:
    """Write down which shapes were asked for; whole or not at all."""
    folder = writable_folder("engines", "shapes")
    place = folder / _place(variant)
    fresh = place.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({n: [list(s) for s in r] for n, r in shapes.items()}))
    os.replace(fresh, place)


def _remembered(variant: Variant) -> dict[str, ShapeRange] | None:
    try:
        text = (cache_root() / "engines" / "shapes" / _place(variant)).read_text(encoding="utf-8")
        found: dict[str, ShapeRange] = {}
        for name, (low, usual, high) in json.loads(text).items():
            found[name] = tuple(low), tuple(usual), tuple(high)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return found
