"""Which package this is installed from, for the lines that install what is missing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

CONVERTER, RUNTIME = "edgeinfer", "edgeinfer-runtime"
"""The package with everything, and the one that a device gets, without what converts."""

BACKENDS = "edgeinfer.backends"
"""The group of entry points by which a package adds an engine."""


def package() -> str:
    """Return the package's name; where both are there, that with everything."""
    for name in (CONVERTER, RUNTIME):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return name
    return CONVERTER


def install(extra: str) -> str:
    """Return the line that installs what an extra needs."""
    return f"pip install '{package()}[{extra}]'"


def without_converter(error: ModuleNotFoundError) -> str:
    """Say that a device has no converter, where an import failed for that; else nothing."""
    part = (error.name or "").split(".")
    if part[0] != "edgeinfer" or part[1:2] not in (["convert"], ["kernels"]):
        return ""
    return (
        f"{RUNTIME} runs bundles and converts nothing; on a machine that converts: "
        f"pip install '{CONVERTER}[convert]' in place of it"
    )
