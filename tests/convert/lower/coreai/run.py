"""Lower a graph, run the asset with Apple's runtime, compare with ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreai.backend import CoreAIBackend
from edgeinfer.convert.lower.coreai.target import CoreAITarget
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.types import Array
from tests.convert.lower.coreml.run import floats, model_of
from tests.convert.lower.running import run as run_onnx
from tests.convert.lower.tflite.run import assert_close

__all__ = ["check", "computed", "floats", "lower", "needs_coreai", "refusal"]

Feeds = Mapping[str, Array]

_PROBE = CoreAIBackend().probe()
needs_coreai = pytest.mark.skipif(_PROBE.version is None, reason=str(_PROBE.reason))


def lower(text: str, folder: Path, precision: str = "fp32") -> Lowered:
    """Normalise and lower into a folder."""
    normal = normalise(model_of(text)).model
    return CoreAITarget().lower(normal, profiles.load("macos27"), LowerOptions(precision), folder)


def check(
    text: str, feeds: Feeds, *more: Feeds, rtol: float = 2e-6, precision: str = "fp32"
) -> Counter[str]:
    """Compare one lowering with ONNX Runtime; returns the operations of the asset."""
    model = model_of(text)
    with tempfile.TemporaryDirectory() as folder:
        made = lower(text, Path(folder), precision)
        artifact = Artifact(made.format, made.files[0], input_specs(model), output_specs(model))
        executable = CoreAIBackend().load(artifact, LoadOptions())
        try:
            for one in (feeds, *more):
                names = [str(o.name) for o in model.graph.outputs]
                right = dict(zip(names, run_onnx(model, dict(one)), strict=True))
                got = executable.run(dict(one))
                assert list(got) == names
                for name, value in right.items():
                    assert_close(got[name], np.asarray(value), rtol, name)
        finally:
            executable.close()
    return Counter(made.ops)


def computed(text: str, feeds: Feeds) -> dict[str, Array]:
    """What Apple's runtime makes of a graph."""
    model = model_of(text)
    with tempfile.TemporaryDirectory() as folder:
        made = lower(text, Path(folder))
        artifact = Artifact(made.format, made.files[0], input_specs(model), output_specs(model))
        executable = CoreAIBackend().load(artifact, LoadOptions())
        try:
            return executable.run(dict(feeds))
        finally:
            executable.close()


def refusal(text: str) -> list[Any]:
    """The problems of a graph that cannot be lowered."""
    normal = normalise(model_of(text)).model
    return CoreAITarget().check(normal, profiles.load("macos27"), LowerOptions())
