"""``edgeinfer build``, with a stand-in for TensorRT."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import EngineRequirement
from tests.backends.cuda_standin import driver as driver
from tests.backends.onnxruntime_tensorrt.standin import StandIn
from tests.backends.onnxruntime_tensorrt.standin import standin as standin
from tests.backends.tensorrt.api import State
from tests.backends.tensorrt.api import trt as trt
from tests.cli.conftest import Cli, write_bundle

ENGINES = (EngineRequirement("onnxruntime-tensorrt"), EngineRequirement("onnxruntime"))


@pytest.fixture
def jetson(bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose only variant is for a Jetson; its input has an open size, 2 in its vector."""
    return _for_jetson(bundle, tmp_path, ENGINES)


@pytest.fixture
def own(bundle: Path, tmp_path: Path) -> Path:
    """The same for TensorRT's own package."""
    engines = (EngineRequirement("tensorrt"), EngineRequirement("onnxruntime"))
    return _for_jetson(bundle, tmp_path, engines)


def _for_jetson(bundle: Path, folder: Path, engines: tuple[EngineRequirement, ...]) -> Path:
    with Bundle.open(bundle) as opened:
        variant = replace(
            opened.manifest.variants[0], id="jetson-onnx-fp32", target="jetson", engines=engines
        )
    return write_bundle(folder / "jetson.edge", variants=(variant,))


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


class TestTensorRT:
    def test_it_takes_part_in_the_race_and_its_engine_is_used(
        self, trt: State, cli: Cli, own: Path
    ) -> None:
        built = cli("build", own)
        assert built.code == 0
        assert built.out.splitlines()[1].split()[:3] == ["jetson-onnx-fp32", "tensorrt", "built"]
        with edgeinfer.load(own) as session:
            pairs = {str(c.pair) for c in session.report().candidates}
        assert "jetson-onnx-fp32 on tensorrt (gpu)" in pairs
        assert len(trt.built) == 1
        x = np.ones((2, 2, 2, 3), np.float32)
        with edgeinfer.load(own, backend="tensorrt") as session:
            np.testing.assert_array_equal(session(image=x), np.ones((2, 3), np.float32))
            assert any("engine of TensorRT 10.3.0" in note for note in session.report().notes)
        assert cli("verify", own, "--backend", "tensorrt").code == 0

    def test_options_are_remembered_until_they_are_taken_back(
        self, trt: State, cli: Cli, own: Path
    ) -> None:
        of_it = ("--backend", "tensorrt")
        named = cli(
            "build", own, *of_it, "--option", "workspace_mb=64", "--option", "gpu_fallback=1"
        )
        assert (named.code, trt.pools) == (0, {"WORKSPACE": 64 << 20})
        edgeinfer.load(own, backend="tensorrt").close()
        assert (cli("build", own, "--check").code, len(trt.built)) == (0, 1)
        assert cli("build", own, *of_it, "--option", "workspace_mb=").code == 0
        edgeinfer.load(own, backend="tensorrt").close()
        assert len(trt.built) == 2

    def test_shapes_and_options_do_not_forget_each_other(
        self, trt: State, cli: Cli, own: Path
    ) -> None:
        assert cli("build", own, "--shape", "image=1,2,2,3:2,2,2,3:4,2,2,3").code == 0
        of_it = ("--backend", "tensorrt", "--option", "optimization_level=1")
        assert cli("build", own, *of_it).code == 0
        assert [head["shapes"]["image"][2][0] for head in trt.built] == [4, 4]
        with edgeinfer.load(own, backend="tensorrt") as session:
            session(image=np.ones((4, 2, 2, 3), np.float32))
        assert len(trt.built) == 2

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (("--option", "workspace_mb=64"), 2, "options are of one engine: name it too"),
            (("-b", "tensorrt", "--option", "workspace"), 2, "expected NAME=VALUE"),
            (("-b", "tensorrt", "--option", "size=1"), 1, "there is no option 'size'"),
        ],
    )
    def test_a_wrong_option_builds_and_remembers_nothing(
        self,
        trt: State,
        cli: Cli,
        own: Path,
        arguments: tuple[str, ...],
        code: int,
        message: str,
    ) -> None:
        found = cli("build", own, *arguments)
        assert found.code == code
        assert message in " ".join((found.out + found.err).split())
        assert trt.built == []
        assert cli("build", own).code == 0

    def test_doctor_and_devices_name_it(self, trt: State, cli: Cli, own: Path) -> None:
        devices = json.loads(cli("devices", "--json").out)
        (found,) = [b for b in devices["backends"] if b["backend"] == "tensorrt"]
        assert (found["version"], found["devices"][0]["name"]) == ("10.3.0", "Orin")
        assert "engine tensorrt" in cli("doctor", own).out
