"""Bundles of one model family become one Core ML package with a function each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Backend, LoadOptions
from edgeinfer.backends.process import isolation
from edgeinfer.backends.process.isolated import IsolatedBackend
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Variant
from edgeinfer.bundle.staging import Staging
from edgeinfer.bundle.writer import sync_tree
from edgeinfer.convert.late import late
from edgeinfer.errors import BundleError, OutputError, UsageError, VerifyError
from edgeinfer.metrics import OutputMetrics, budget_for, check, compare, worst
from edgeinfer.records import dataclass

BACKEND = "coreml-reference"

_LONGEST_S = 600.0
"""Seconds for a run of a function."""


@dataclass(frozen=True, slots=True)
class PackageFunction:
    """One function of the package.

    Attributes:
        name: Name of the function.
        bundle: where it came from.
        precision: Precision of the variant that was taken.
        size_bytes: Size in bytes of that variant's package.
        vectors: how many test vectors it was run on.
        metrics: the worst over all of them.
    """

    name: str
    bundle: str
    precision: str
    size_bytes: int
    vectors: int
    metrics: OutputMetrics


@dataclass(frozen=True, slots=True)
class JoinedPackage:
    """A package that was written.

    Attributes:
        path: the package.
        functions: the default one first.
        size_bytes: Size in bytes of all its files.
    """

    path: Path
    functions: tuple[PackageFunction, ...]
    size_bytes: int


def join(
    bundles: Mapping[str, str | Path],
    output: str | Path,
    *,
    target: str = "",
    overwrite: bool = False,
    trust: Mapping[str, Any] | None = None,
) -> JoinedPackage:
    """Put the Core ML packages of several bundles into one, and run each function's vectors there.

    Args:
        bundles: by the name of the function that each becomes; the first is the default.
        output: a folder that ends with ``.mlpackage``.
        target: whose variant to take where a bundle has several.
        overwrite: replace a package of that name.
        trust: options of opening the bundles, such as keys that must have signed them.

    Raises:
        UsageError: a bundle has no Core ML package, or a name does not fit.
        BundleError: a bundle is damaged.
        VerifyError: a function left the budget of its precision; nothing was written.
        OutputError: the package cannot be written.
    """
    place = Path(output)
    if place.suffix != ".mlpackage":
        raise UsageError(f"{place}: expected a name that ends with .mlpackage")
    if place.exists() and not overwrite:
        raise UsageError(f"{place}: exists; add --overwrite")
    try:
        with ExitStack() as stack:
            staging = Staging(place)
            stack.callback(staging.remove)
            opened = {
                n: stack.enter_context(Bundle.open(b, **(trust or {}))) for n, b in bundles.items()
            }
            if sealed := [str(bundles[n]) for n, b in opened.items() if b.sealed_by]:
                raise UsageError(
                    f"{', '.join(sealed)}: encrypted, and a package has its "
                    "weights in plain; join bundles that were decrypted to a place that is safe by "
                    "other means"
                )
            chosen = {n: _variant(n, b, target) for n, b in opened.items()}
            parts = {n: opened[n].paths(v)[0] for n, v in chosen.items()}
            package = staging.tree / place.name
            late("pipeline.worker").read_apart(
                *("join packages", tuple[Path, ...], parts, package),
                files=[*parts.values()],
                writable=[staging.tree],
            )
            functions = tuple(
                _checked(name, bundle, chosen[name], package) for name, bundle in opened.items()
            )
            sync_tree(package)
            staging.place_folder(package)
    except OSError as error:
        raise OutputError(f"{place}: {error.strerror or error}") from error
    size = sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
    return JoinedPackage(place, functions, size)


def _variant(name: str, bundle: Bundle, target: str) -> Variant:
    found = [v for v in bundle.manifest.variants if v.format == "mlprogram"]
    found = [v for v in found if target in ("", v.target)]
    if not found:
        wanted = f" for {target}" if target else ""
        raise UsageError(f"join: the bundle of {name!r} has no Core ML package{wanted}")
    return found[0]


def _evaluator() -> Backend:
    """What evaluates packages, where it can be ended: loops and sizes are a stranger's."""
    if not isolation.apart():
        return registry.get(BACKEND)
    return IsolatedBackend(BACKEND, run_s=_LONGEST_S, load_s=_LONGEST_S, reuse=False)


def _checked(name: str, bundle: Bundle, variant: Variant, package: Path) -> PackageFunction:
    manifest = bundle.manifest
    budget = budget_for(variant.precision)
    artifact = Artifact("mlprogram", package, manifest.inputs, manifest.outputs)
    executable = _evaluator().load(artifact, LoadOptions(extra={"function": name}))
    measured = []
    try:
        vectors = list(zip(manifest.vectors, bundle.vectors(), strict=True))
        answers = [outs for r, (_, outs) in vectors if r.judged_at(variant.precision)]
        for record, (feeds, expected) in vectors:
            if not record.judged_at(variant.precision):
                continue
            actual = executable.run(feeds)
            if lacking := expected.keys() - actual.keys():
                raise BundleError(
                    f"{bundle.location}: its package gives no output {min(lacking)!r}"
                )
            for output, want in expected.items():
                metrics = compare(want, actual[output], channel_floor=budget.channel_floor)
                base = budget.among(a[output] for a in answers)
                if breaches := check(metrics, record.budget(base, output)):
                    raise VerifyError(
                        f"function {name!r}: output {output!r}: {breaches[0]} "
                        f"({record.file.path}); nothing was written"
                    )
                measured.append(metrics)
    finally:
        executable.close()
    if not measured:
        raise BundleError(f"{bundle.location}: no test vector judges {variant.id}")
    return PackageFunction(
        *(name, str(bundle.location), variant.precision, variant.size_bytes),
        sum(r.judged_at(variant.precision) for r in manifest.vectors),
        worst(measured),
    )
