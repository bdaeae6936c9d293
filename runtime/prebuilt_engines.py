"""Engines that a backend builds on this machine before anything runs, and their shapes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from itertools import islice
from pathlib import Path

from edgeinfer.backends import registry
from edgeinfer.backends.base import (
    Artifact,
    Backend,
    BuildsAhead,
    LoadOptions,
    ShapeRange,
)
from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.cache import readable_folder, writable_folder
from edgeinfer.bundle.manifest import Variant
from edgeinfer.errors import BackendError, InputError, NotAvailableError, UsageError
from edgeinfer.records import dataclass
from edgeinfer.types import Progress, TensorSpec

_VECTORS = 8
"""Test vectors whose shapes are looked at where nobody named any."""

_MOST_NAMED = 1 << 20
"""Bytes of what somebody named for engines of a variant."""


@dataclass(frozen=True, slots=True)
class PrebuiltEngine:
    """One engine.

    Attributes:
        variant: id of the variant.
        backend: that builds it.
        state: ``built``, ``current``, ``stale`` (only looked at) or ``failed``.
        detail: why it had to be built, or why it failed.
        seconds: that building took.
        folder: where it is.
        size_bytes: Size in bytes of its files.
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
    return Artifact(
        *(variant.format, path, manifest.inputs, manifest.outputs),
        *(variant.precision, variant.computed_in, variant.files[0].sha256),
    )


def as_built(bundle: Bundle, variant: Variant, backend: str, options: LoadOptions) -> LoadOptions:
    """Add to the options of a load what an engine is built for, where the backend builds one.

    Options and shapes are those that were named when it was built; shapes that nobody named are
    those of the test vectors.

    Raises:
        BundleError: a vector is altered.
    """
    if not isinstance(registry.get(backend), BuildsAhead):
        return options
    known = _remembered(variant)
    open_inputs = [spec for spec in bundle.manifest.inputs if not spec.is_static]
    shapes = known.shapes or (_of_vectors(bundle, open_inputs) if open_inputs else {})
    return replace(options, shapes=shapes, extra=options_named(variant, backend))


def options_named(variant: Variant, backend: str) -> dict[str, str]:
    """Return the options that were named for engines of a backend; empty for none."""
    named = _remembered(variant).options.get(backend, {})
    # Few have any, and to ask a backend imports it.
    return named if named and isinstance(registry.get(backend), BuildsAhead) else {}


def build_engines(
    bundle: Bundle,
    *,
    backend: str | None = None,
    shapes: Mapping[str, ShapeRange] | None = None,
    options: Mapping[str, str] | None = None,
    check_only: bool = False,
    progress: Progress | None = None,
) -> tuple[PrebuiltEngine, ...]:
    """Build every engine of a bundle that is not current.

    Args:
        bundle: open.
        backend: only this one.
        shapes: Shapes of inputs with open sizes; remembered for later loads. None keeps what was
            named before, or takes the shapes of the test vectors.
        options: Options of that one backend, by its own names; remembered too. An empty value takes
            back what was named before.
        check_only: only say what is current.
        progress: Called with what is being done.

    Raises:
        NotAvailableError: no backend of the bundle builds engines here; says why for each.
        UsageError: a backend builds none, shapes do not fit the model, or options are for no
            backend.
        BundleError: a file is altered.
    """
    if backend is not None and not isinstance(registry.get(backend), BuildsAhead):
        raise UsageError(f"backend {backend!r} builds no engines ahead; it needs none")
    if options and backend is None:
        raise UsageError("options are of one engine: name it too (--backend)")
    for name, wanted in (shapes or {}).items():
        _check_shape(bundle.manifest.inputs, name, wanted)
    found, reasons = [], []
    for variant, builder in _builders(bundle, backend):
        probe = builder.probe()
        if not probe.available:
            reasons.append(f"{builder.name}: {probe.reason}")
            continue
        load = as_built(bundle, variant, builder.name, LoadOptions(probe.devices[0].kind))
        extra = {n: v for n, v in {**load.extra, **(options or {})}.items() if v}
        load = replace(load, shapes={**load.shapes, **(shapes or {})}, extra=extra)
        built = _one(bundle, variant, builder, load, check_only, progress)
        if (shapes or options) and built.state in ("built", "current") and not check_only:
            _remember(variant, builder.name, load.shapes if shapes else None, extra)
        found.append(built)
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
    options: LoadOptions,
    check_only: bool,
    progress: Progress | None,
) -> PrebuiltEngine:
    if not isinstance(builder, BuildsAhead):
        raise TypeError(builder.name)
    artifact, what = artifact_of(bundle, variant), f"build the engine of {variant.id}"

    def tell(phase: str, part: float | None) -> None:
        if progress is not None:
            progress(f"{what}: {phase}", part)

    try:
        why = builder.unbuilt(artifact, options)
        if why and check_only:
            return PrebuiltEngine(variant.id, builder.name, "stale", why)
        if why:
            tell(why, None)
        start = time.monotonic()
        folder = None if check_only else builder.build(artifact, options, tell)
    except (BackendError, InputError) as e:
        return PrebuiltEngine(variant.id, builder.name, "failed", str(e))
    seconds = time.monotonic() - start if why else 0.0
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder else 0
    state = "built" if why else "current"
    return PrebuiltEngine(variant.id, builder.name, state, why, seconds, folder, size)


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


@dataclass(frozen=True, slots=True)
class _Named:
    """What somebody named for engines of a variant.

    Attributes:
        shapes: by input.
        options: by backend.
    """

    shapes: dict[str, ShapeRange] = field(default_factory=dict)
    options: dict[str, dict[str, str]] = field(default_factory=dict)


def _remember(
    variant: Variant,
    backend: str,
    shapes: Mapping[str, ShapeRange] | None,
    options: dict[str, str],
) -> None:
    """Write down what was requested; whole or not at all."""
    known = _remembered(variant)
    named = {n: [list(s) for s in r] for n, r in (shapes or known.shapes).items()}
    text = json.dumps({"shapes": named, "options": {**known.options, backend: options}})
    folder = writable_folder("engines", "named")
    place = folder / _place(variant)
    fresh = place.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    os.replace(fresh, place)


def _remembered(variant: Variant) -> _Named:
    try:
        # Options are of whoever could write them: a folder of others names none.
        folder = readable_folder("engines", "named")
        if folder is None:
            return _Named()
        found = json.loads(read_bounded(folder / _place(variant), _MOST_NAMED))
        shapes: dict[str, ShapeRange] = {}
        for name, (low, usual, high) in found["shapes"].items():
            shapes[name] = tuple(low), tuple(usual), tuple(high)
        options = {
            str(b): {str(n): str(v) for n, v in o.items()} for b, o in found["options"].items()
        }
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return _Named()
    return _Named(shapes, options)
