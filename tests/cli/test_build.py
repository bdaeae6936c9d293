"""``edgeinfer build``, with a stand-in for TensorRT."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import EngineRequirement
from tests.backends.tensorrt_standin import StandIn
from tests.backends.tensorrt_standin import standin as standin
from tests.cli.conftest import Cli, write_bundle

ENGINES = (EngineRequirement("onnxruntime-tensorrt"), EngineRequirement("onnxruntime"))


@pytest.fixture
def jetson(bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose only variant is for a Jetson; its input has an open size, 2 in its vector."""
    with Bundle.open(bundle) as opened:
        variant = replace(
            opened.manifest.variants[0], id="jetson-onnx-fp32", target="jetson", engines=ENGINES
        )
    return write_bundle(tmp_path / "jetson.edge", variants=(variant,))


def test_an_engine_is_built_once(standin: StandIn, cli: Cli, jetson: Path) -> None:
    checked = cli("build", jetson, "--check")
    assert checked.code == 1
    assert "jetson-onnx-fp32: none was built yet" in checked.out
    first = cli("build", jetson)
    assert first.code == 0
    assert first.out.splitlines()[1].split()[:3] == [
        "jetson-onnx-fp32", "onnxruntime-tensorrt", "built",
    ]  # fmt: skip
    second = json.loads(cli("build", jetson, "--json").out)
    assert second["current"] is True
    assert [e["state"] for e in second["engines"]] == ["current"]
    assert cli("build", jetson, "--check").code == 0
    assert len(standin.built) == 1
    assert standin.built[0]["trt_profile_max_shapes"] == "image:2x2x2x3"


def test_a_load_takes_the_engine_and_builds_none(
    standin: StandIn, cli: Cli, jetson: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cli("build", jetson, "--shape", "image=1,2,2,3:2,2,2,3:4,2,2,3")
    with edgeinfer.load(jetson, backend="onnxruntime-tensorrt") as session:
        x = np.ones((4, 2, 2, 3), np.float32)
        np.testing.assert_array_equal(session(image=x), np.ones((4, 3), np.float32))
        assert any("engine of TensorRT 10.3.0" in note for note in session.report().notes)
    assert len(standin.built) == 1
    assert not [r for r in caplog.records if "building" in r.getMessage()]


def test_a_stale_engine_is_built_by_the_load_with_a_word(
    standin: StandIn, cli: Cli, jetson: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cli("build", jetson)
    standin.tensorrt = "10.7.0"
    assert "it was built for TensorRT 10.3.0, this is 10.7.0" in cli("build", jetson, "--check").out
    edgeinfer.load(jetson, backend="onnxruntime-tensorrt").close()
    assert any("it was built for TensorRT 10.3.0" in r.getMessage() for r in caplog.records)
    assert len(standin.built) == 2


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("image", "expected NAME=SHAPE or NAME=SMALLEST:USUAL:LARGEST"),
        ("image=1,2:3,4", "expected NAME=SHAPE or NAME=SMALLEST:USUAL:LARGEST"),
        ("picture=1,2,2,3", "the model has no such input; it has 'image'"),
        ("image=2,2,2,3:1,2,2,3:4,2,2,3", "sizes of axis 0 do not grow: 2, 1, 4"),
        ("image=1,2,2,4", "does not fit the model's image: float32[N, 2, 2, 3]"),
        ("image=0,2,2,3", "sizes of axis 0 do not grow: 0, 0, 0"),
        ("image=1,2,3", "does not fit the model's"),
    ],
)
def test_a_wrong_shape_is_refused_before_anything_is_built(
    standin: StandIn, cli: Cli, jetson: Path, shape: str, message: str
) -> None:
    found = cli("build", jetson, "--shape", shape)
    assert (found.code, standin.built) == (2, [])
    assert message in found.err


def test_a_model_that_is_refused_fails_in_one_line(
    standin: StandIn, cli: Cli, jetson: Path
) -> None:
    standin.refuses = "no such operator"
    found = cli("build", jetson)
    assert found.code == 1
    assert "no such operator" in found.out


def test_without_a_builder_the_reason_is_said(cli: Cli, jetson: Path, bundle: Path) -> None:
    found = cli("build", bundle)
    assert found.code == 3
    assert "it has no variant for a backend that builds one" in found.err
    found = cli("build", jetson, "--backend", "onnxruntime")
    assert found.code == 2
    assert "builds no engines ahead" in found.err


def test_engines_are_cleared_with_the_cache(standin: StandIn, cli: Cli, jetson: Path) -> None:
    cli("build", jetson)
    assert "engines" in cli("cache", "list").out
    assert cli("cache", "clear").code == 0
    assert cli("build", jetson, "--check").code == 1
