"""Lower a graph for this machine's CPU, run the library, compare with ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeinfer.backends.base import Artifact, DeviceKind, Executable, LoadOptions
from edgeinfer.backends.tvm.backend import TvmBackend
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.lower.tvm.target import TvmTarget
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.profiles.schema import Profile

Array = npt.NDArray[Any]
MACHINE = "x86-64-v3"


def profile(machine: str = MACHINE) -> Profile:
    """A profile of one machine."""
    return Profile("any", "any", ("linux",), (), ("tvm",), ("tvm",), ("fp32",), machine=machine)


def lower(model: Any, folder: Path, machine: str = MACHINE) -> Lowered:
    """Normalise and lower."""
    source = model if isinstance(model, ir.Model) else ir.from_proto(model)
    normal = normalise(source).model
    return TvmTarget().lower(normal, profile(machine), LowerOptions(), folder)


def artifact(model: Any, folder: Path, machine: str = MACHINE) -> Artifact:
    """Write a model's library; described as the model is."""
    source = model if isinstance(model, ir.Model) else ir.from_proto(model)
    made = lower(model, folder, machine)
    return Artifact("tvm", made.files[0], input_specs(source), output_specs(source))


def load(model: Any, folder: Path, **options: Any) -> Executable:
    """Write a model's library and open it."""
    extra = {"trial": "off", **options.pop("extra", {})}
    machine = options.pop("machine", MACHINE)
    device: DeviceKind = "gpu" if machine.startswith("sm_") else "cpu"
    made = artifact(model, folder, machine)
    return TvmBackend().load(made, LoadOptions(device, extra=extra, **options))


def outputs(model: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a model once."""
    with tempfile.TemporaryDirectory() as folder:
        executable = load(model, Path(folder))
        found = executable.run({k: np.asarray(v) for k, v in feeds.items()})
        return {name: np.array(array) for name, array in found.items()}
