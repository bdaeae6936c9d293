"""Which package this is installed from, for the lines that install what is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edgeinfer._version import __version__

CONVERTER, RUNTIME = "edgeinfer", "edgeinfer-runtime"
"""The package with everything, and the one that a device gets, without what converts."""

BACKENDS = "edgeinfer.backends"
"""The group of entry points by which a package adds an engine."""


_OF_THE_CONVERTER = ("convert", "kernels", "cli", "remote", "comparisons")
"""Parts of the package that a device's has not, or not whole."""


def package() -> str:
    """Return the package's name; where both are there, that with everything."""
    from importlib.metadata import PackageNotFoundError, distribution

    for name in (CONVERTER, RUNTIME):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return name
    return CONVERTER


def anew() -> str:
    """Return what an environment that has nothing yet gets it from: it is on no index."""
    if package() == CONVERTER:
        return "."
    return f"./{RUNTIME.replace('-', '_')}-{__version__}-py3-none-any.whl"


def extras() -> frozenset[str]:
    """Return the extras that the installed package has; the runtime's has none that convert."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        return frozenset(metadata(package()).get_all("Provides-Extra") or ())
    except PackageNotFoundError:
        return frozenset()


def install(extra: str) -> str:
    """Return the line that installs what an extra needs."""
    return f"pip install '{package()}[{extra}]'"


def version(name: str, module: str) -> str | None:
    """Return the version of a distribution; None where it is not installed.

    The folder next to its module says it too, which spares a load that needs no more of them the
    standard library's reader of metadata and all that it imports: a twentieth of its time.

    Args:
        name: Name of the distribution.
        module: Name of a module that it brings.
    """
    found = importlib.util.find_spec(module)
    folders = (found.submodule_search_locations if found else None) or ()
    pattern = f"{name.replace('-', '_')}-*.dist-info"
    beside = [made for place in folders for made in Path(place).parent.glob(pattern)]
    if len(beside) == 1:
        return beside[0].name.removesuffix(".dist-info").rpartition("-")[2]
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as noted

    try:
        return noted(name)
    except PackageNotFoundError:
        return None


def without_converter(error: ModuleNotFoundError) -> str:
    """Say that a device has no converter, where an import failed for that; else nothing."""
    part = [*(error.name or "").split("."), ""]
    if part[0] != "edgeinfer" or part[1] not in _OF_THE_CONVERTER:
        return ""
    return (
        f"{RUNTIME} runs bundles and converts nothing; a machine that converts has {CONVERTER} in "
        "place of it: pip install '.[convert]' in a checkout"
    )
