"""Several programs in one package, as functions that share their weights (iOS18 and later)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeinfer.backends.coreml_reference.package import open_package, package_folder
from edgeinfer.backends.engines import import_coremltools
from edgeinfer.convert.lower.coreml.deployment import IOS18
from edgeinfer.convert.lower.coreml.package import CHECKED, files_of, quiet, settle
from edgeinfer.errors import LoadError, NotAvailableError, UsageError


def join_packages(
    packages: Mapping[str, Path], output: Path, default: str = ""
) -> tuple[Path, ...]:
    """Write one package with a function for each of several packages.

    Weights of equal type and values lie in it once. What a package's metadata says of names and
    types is kept for its function.

    Args:
        packages: folders, or their manifests, by the name of the function that each becomes.
        output: the new package's folder; it must not exist.
        default: the function that is taken when none is named; the first one unless it is given.

    Returns:
        Its files; the manifest first.

    Raises:
        UsageError: a name is none that Core ML takes, or there are fewer than two functions.
        LoadError: a package cannot be read.
        NotAvailableError: coremltools is not installed.
    """
    default = default or next(iter(packages), "")
    _check(packages, default)
    metadata = {CHECKED: open_package(packages[default]).metadata.get(CHECKED, "")}
    for name, place in packages.items():
        package = open_package(place)
        if len(package.functions) > 1:
            raise UsageError(f"{place} has several functions already: {package.functions}")
        metadata |= {
            f"{key}@{name}": value for key, value in package.metadata.items() if key != CHECKED
        }
    try:
        tools = import_coremltools()
    except ImportError as error:
        raise NotAvailableError(
            "packages are joined by coremltools, which is not installed; "
            "pip install 'edgeinfer[coreml]'"
        ) from error
    with quiet(), tempfile.TemporaryDirectory(prefix="edgeinfer-") as scratch:
        description = tools.utils.MultiFunctionDescriptor()
        try:
            for name, place in packages.items():
                folder = _with_weights(package_folder(place), Path(scratch), name, tools)
                description.add_function(
                    str(folder), src_function_name="main", target_function_name=name
                )
            description.default_function_name = default
            tools.utils.save_multifunction(description, str(output))
        # Of what a stranger wrote, coremltools refuses each part in its own way.
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise LoadError(f"coremltools cannot join these packages: {reason}") from error
    settle(output, {key: value for key, value in metadata.items() if value})
    return files_of(output)


def _with_weights(folder: Path, scratch: Path, name: str, tools: Any) -> Path:
    """Return a package that has a folder for weights, which coremltools wants to see."""
    if any(folder.rglob("weight.bin")):
        return folder
    empty = scratch / "weights"
    empty.mkdir(exist_ok=True)
    spec = tools.models.MLModel(str(folder), skip_model_load=True).get_spec()
    made = scratch / f"{name}.mlpackage"
    model = tools.models.MLModel(spec, weights_dir=str(empty), skip_model_load=True)
    model.save(str(made))
    return made


def _check(packages: Mapping[str, Path], default: str) -> None:
    if len(packages) < 2:
        raise UsageError("join: expected two functions at least")
    for name in packages:
        if not (name.isidentifier() and name.isascii()):
            raise UsageError(f"join: {name!r} is no name of a function: letters, digits and _")
    if default not in packages:
        raise UsageError(f"join: the default {default!r} is none of {', '.join(packages)}")
    for name, place in packages.items():
        # coremltools would raise the version by itself, and with it the oldest system.
        if open_package(place).version < IOS18.specification:
            raise UsageError(
                f"join: {name!r} was made for an older system: functions need {IOS18}; convert it "
                f"with --deployment {IOS18.ios}"
            )
