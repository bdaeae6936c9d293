"""Real models as Core ML packages: written, opened from disk, evaluated, equal to the oracle.

Evaluated, not run on Apple hardware: ``coreml-reference`` computes what the program says.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
from edgeinfer.convert.lower.coreml.target import CoreMLTarget
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.types import Array
from tests import zoo
from tests.e2e.test_models import MODELS, plain_session

pytestmark = pytest.mark.models

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "aecmos": {"input": (1, 3, 300, 160)},
    "plcmos": {"degraded_audio": (1, 1, 300, 257), "rater_embed": (1, 64)},
    "silero": {"input": (1, 576)},
    "melspectrogram": {"input": (1, 12800)},
    "ppocrv4-rec": {"x": (1, 3, 48, 96)},
    "ppocrv6-rec": {"x": (1, 3, 48, 96)},
    "ppocr-cls": {"x": (1, 3, 48, 192)},
}
"""Sizes that models want, by a part of their names."""

FIXED = tuple(n for n in MODELS if n.startswith(("aecmos", "plcmos")))
"""Models that drop the axes of size 1, whichever they are: their sizes must be known."""

BRANCHES_ONLY = ("silero-vad", "silero-vad-op18-ifless")
"""Models that are one choice between two graphs, which stays in single precision."""

WIDE = 96
"""Of open sizes of images and recordings elsewhere."""


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """The sizes of a model's inputs that are not free."""
    return next((s for part, s in SHAPES.items() if part in name), {})


def feeds_of(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Seeded inputs of small sizes that every model of the zoo takes."""
    rng = np.random.default_rng(0)
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    feeds: dict[str, Array] = {}
    for value in plain_session(path).get_inputs():
        # States of three axes have their batch second.
        ones = (0, 1) if len(value.shape) == 3 else (0,)
        free = [
            d if isinstance(d, int) else (1 if i in ones else WIDE)
            for i, d in enumerate(value.shape)
        ]
        wanted = shapes.get(value.name, ())
        dims = wanted if len(wanted) == len(free) else tuple(free)
        kind = np.dtype(kinds.get(value.type, np.int32))
        if value.name == "sr":
            feeds[value.name] = np.full(dims, 16000, kind)
        elif kind.kind == "f":
            feeds[value.name] = (0.3 * rng.standard_normal(dims)).astype(kind)
        else:
            feeds[value.name] = rng.integers(0, 2, dims).astype(kind)
    return feeds


def evaluated(
    model: ir.Model,
    feeds: dict[str, Array],
    folder: Path,
    precision: str,
    *,
    shapes: dict[str, tuple[int, ...]] | None = None,
    integers: dict[str, tuple[int, int]] | None = None,
) -> tuple[dict[str, Array], str]:
    """Lower, let coremltools read and validate the package, open it from disk, run."""
    normal = normalise(model, input_shapes=shapes or None).model
    folder.mkdir()
    asked = LowerOptions(precision, integers=integers or {})
    made = CoreMLTarget().lower(normal, profiles.load("ios"), asked, folder)
    accepted(made.files[0].parent)
    artifact = Artifact(made.format, made.files[0], input_specs(model), output_specs(model))
    executable = CoreMLReferenceBackend().load(artifact, LoadOptions())
    return dict(executable.run(feeds)), made.precision


def accepted(package: Path) -> None:
    """coremltools opens the package, and its own checks of programs hold for what it reads."""
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.libmodelpackage import ModelPackage

    assert ModelPackage.isValid(str(package))
    model = ct.models.MLModel(str(package), skip_model_load=True)
    spec = model.get_spec()
    program = load(
        spec, specification_version=spec.specificationVersion, file_weights_dir=model.weights_dir
    )
    program.validate(check_essential_scope=False)
    assert set(program.functions) == {"main"}
    main = program.functions["main"]
    assert {i.name for i in spec.description.input} == set(main.inputs)
    assert [o.name for o in spec.description.output] == [o.name for o in main.outputs]


def within(got: dict[str, Array], want: dict[str, Array], precision: str) -> None:
    """The gate's own budget; for fp32 also float rounding, wherever an output is not near zero."""
    for name, right in want.items():
        assert not check(compare(right, got[name]), budget_for(precision)), name
        if precision == "fp32" and right.dtype.kind == "f":
            scale = max(float(np.abs(right).max()), 1e-2) if right.size else 1.0
            np.testing.assert_allclose(got[name], right, rtol=1e-4, atol=1e-4 * scale, err_msg=name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_onnx_models(name: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip("coremltools")
    path = zoo.fetch(f"{name}.onnx")
    feeds = feeds_of(path, shapes_of(name))
    session = plain_session(path)
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(None, feeds), strict=True))
    shapes = {n: a.shape for n, a in feeds.items()} if name in FIXED else None
    got, found = evaluated(ir.load(path), feeds, tmp_path / "m", precision, shapes=shapes)
    assert ("fp16" in found) == (precision == "fp16" and name not in BRANCHES_ONLY)
    within(got, want, found)
