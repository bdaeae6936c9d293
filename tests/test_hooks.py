"""Hooks into other tools: what they say of a model, and what they do with its results."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

import edgeinfer
from edgeinfer.heads import Classify, DetectGrid, DetectRows, Keypoints, Prototypes, Rotated
from edgeinfer.tasks import Detector
from tests.test_documented_pages import PREPROCESSING, draw, model

HOOKS = Path(__file__).resolve().parent.parent / "examples" / "hooks"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(path: Path, task: str, **more: str) -> Path:
    """Write a file as Ultralytics does, with what it says of its outputs."""
    graph = onnx.parser.parse_model(BOX)
    said = {"task": task, "names": "{1: 'dog', 0: 'cat'}", "imgsz": "[32, 32]", **more}
    onnx.helper.set_model_props(graph, said)
    onnx.save(graph, path)
    return path


GRID, ROWS = partial(DetectGrid, "output0", channels_first=True), partial(DetectRows, "output0")


@pytest.mark.parametrize(
    ("task", "more", "expected"),
    [
        ("detect", {}, GRID()),
        ("detect", {"end2end": "True"}, ROWS()),
        ("segment", {"end2end": "False"}, GRID(extra=Prototypes("output1"))),
        ("pose", {"kpt_shape": "[5, 2]"}, GRID(extra=Keypoints(5, scored=False))),
        ("obb", {"end2end": "True"}, ROWS(box="xywh", extra=Rotated())),
        ("classify", {}, Classify("output0")),
        ("detect", {"head": "RTDETRDecoder"}, ROWS(box="xywh", unit="share")),
    ],
)
def test_what_a_yolo_says(
    task: str, more: dict[str, str], expected: object, tmp_path: Path
) -> None:
    said = loaded("from_ultralytics").describe(written(tmp_path / "y.onnx", task, **more))
    assert said.head == expected
    assert said.labels == ("cat", "dog")
    resize = {"classify": "crop"}.get(task, "stretch" if "head" in more else "letterbox")
    assert said.preprocessing["images"].resize == resize


def test_an_rt_detr_that_does_not_say_what_it_is_is_refused(tmp_path: Path) -> None:
    """Its rows were one box and a score for each class, which the head for rows does not read."""
    older = {"description": "Ultralytics rtdetr-l model", "version": "8.3.0"}
    with pytest.raises(SystemExit, match=r"RT-DETR of Ultralytics 8\.3\.0, .*newer"):
        loaded("from_ultralytics").describe(written(tmp_path / "r.onnx", "detect", **older))


BOX = """
<ir_version: 8, opset_import: ["" : 17]>
one (float[1, 3, 32, 32] images) => (float[1, 6, 2] output0)
<float[1, 4, 2] box = {16.0, 4.0, 16.0, 4.0, 8.0, 2.0, 16.0, 2.0}, float[1, 1, 1] none = {0.0}>
{
    top = ReduceMax <axes = [1, 2, 3], keepdims = 1> (images)
    three = Constant <value_ints = [1, 1, 1]> ()
    high = Reshape(top, three)
    row = Concat <axis = 2> (high, none)
    both = Concat <axis = 1> (row, row)
    half = Constant <value_floats = [0.5]> ()
    scores = Mul(both, half)
    output0 = Concat <axis = 1> (box, scores)
}
"""


def test_a_yolo_becomes_a_bundle_that_finds(tmp_path: Path) -> None:
    file = written(tmp_path / "yolo.onnx", "detect")
    asked: list[dict[str, object]] = []

    def export(**options: object) -> str:
        asked.append(options)
        return str(file)

    given = SimpleNamespace(export=export)
    loaded("from_ultralytics").export(given, tmp_path / "y.edge", ["onnxruntime"], size=32)
    assert asked == [{"format": "onnx", "imgsz": 32, "simplify": False}]
    with Detector(tmp_path / "y.edge") as detector:
        (found,) = detector.detect(np.full((64, 64, 3), 255, np.uint8))
    assert (found.label, round(found.score, 2)) == ("cat", 0.5)
    assert found.box == (24.0, 16.0, 40.0, 48.0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    onnx.save(model(), folder / "model.onnx")
    (folder / "image.toml").write_text(PREPROCESSING)
    (folder / "names.txt").write_text("red\ngreen\nblue\n")
    draw(folder / "photos")
    return folder


def budget(folder: Path, least: str, summary: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = "--preprocessing image.toml --labels names.txt"
    words = ["model.onnx", "photos", "--targets", "onnxruntime", "--at-least", least]
    return subprocess.run(
        [
            sys.executable,
            HOOKS / "accuracy_budget" / "budget.py",
            *words,
            "--options",
            options,
            *more,
        ],
        cwd=folder,
        env={**os.environ, "GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.sweep
def test_a_model_within_its_budget_passes_and_one_below_fails(photos: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    done = budget(photos, "0.9", summary)
    assert done.returncode == 0, done.stderr
    (row,) = re.findall(r"^\| onnxruntime-onnx-fp32 .*$", done.stdout, re.MULTILINE)
    assert row.endswith("| kept |")
    assert row in summary.read_text()
    done = budget(photos, "1.01", summary)
    assert done.returncode == 1
    assert "**left**" in done.stdout


def test_a_model_that_is_refused_fails(photos: Path, tmp_path: Path) -> None:
    done = budget(photos, "0.1", tmp_path / "s.md", "--targets", "no-such-target")
    assert done.returncode == 1
    assert "not converted: " in done.stderr


@pytest.mark.sweep
def test_data_that_cannot_be_measured_fails_with_the_reason(photos: Path, tmp_path: Path) -> None:
    done = budget(photos, "0.1", tmp_path / "s.md", "--metric", "map")
    assert done.returncode == 1
    assert "not measured: " in done.stderr
    assert "expected" in done.stderr
    assert "kept" not in done.stdout


@pytest.mark.sweep
@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="ONNX Runtime here is built for CUDA",
)
def test_an_artifact_that_nothing_here_runs_fails(photos: Path, tmp_path: Path) -> None:
    done = budget(photos, "0.1", tmp_path / "s.md", "--targets", "onnxruntime cuda")
    assert done.returncode == 1
    assert "not measured: cuda" in done.stderr
    assert "| kept |" in done.stdout


def test_the_action_passes_what_the_script_takes() -> None:
    action = (HOOKS / "accuracy_budget" / "action.yml").read_text()
    script = (HOOKS / "accuracy_budget" / "budget.py").read_text()
    used = set(re.findall(r"--[a-z-]+(?= \"\$)", action))
    assert used == set(re.findall(r'"(--(?:targets|metric|at-least|options))"', script))
    given = set(re.findall(r"inputs\.([a-z-]+)", action))
    declared = re.findall(r"^  ([a-z-]+):$", action.split("runs:")[0], re.MULTILINE)
    assert given == set(declared)
    # No input is put into the shell's text, where it could be a command.
    assert "${{ inputs" not in action.split("run: |")[1]


class Message(SimpleNamespace):
    """Stands in for any message of ROS 2."""

    def __getattr__(self, name: str) -> Message:
        found = Message()
        setattr(self, name, found)
        return found


class Node:
    """Stands in for ``rclpy.node.Node``."""

    parameters: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str) -> None:
        self.published: list[Any] = []
        self.errors: list[str] = []

    def declare_parameter(self, name: str, value: Any) -> None:
        self.parameters.setdefault(name, value)

    def get_parameter(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(value=self.parameters[name])

    def create_publisher(self, kind: type, topic: str, depth: int) -> SimpleNamespace:
        return SimpleNamespace(publish=self.published.append)

    def create_subscription(self, kind: type, topic: str, heard: Any, depth: int) -> None:
        self.heard = heard

    def get_logger(self) -> SimpleNamespace:
        return SimpleNamespace(error=self.errors.append)


@pytest.fixture
def ros(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A node on a bundle that finds one box, without ROS."""
    messages = dict.fromkeys(
        ("Image", "Detection2D", "Detection2DArray", "ObjectHypothesisWithPose"), Message
    )
    for name in (
        "rclpy",
        "rclpy.node",
        "sensor_msgs",
        "sensor_msgs.msg",
        "vision_msgs",
        "vision_msgs.msg",
    ):
        module = ModuleType(name)
        vars(module).update(Node=Node, **messages)
        monkeypatch.setitem(sys.modules, name, module)
    test_a_yolo_becomes_a_bundle_that_finds(tmp_path)
    monkeypatch.setattr(Node, "parameters", {"bundle": str(tmp_path / "y.edge"), "track": True})
    node = loaded("ros2_detector").DetectorNode()
    yield node
    node.detector.close()


def image(encoding: str = "bgr8") -> Message:
    rows = np.zeros((64, 64 * 3 + 8), np.uint8)
    rows[:, : 64 * 3] = 255
    sizes = {"height": 64, "width": 64, "step": rows.shape[1]}
    return Message(encoding=encoding, data=rows.tobytes(), header="at noon", **sizes)


def test_a_picture_of_ros_gives_detections(ros: Any) -> None:
    ros.heard(image())
    ros.heard(image())
    assert len(ros.published) == 2
    for told in ros.published:
        (found,) = told.detections
        assert (told.header, found.header, found.id) == ("at noon", "at noon", "1")
        assert (found.bbox.center.position.x, found.bbox.size_y) == (32.0, 32.0)
        assert found.results[0].hypothesis.class_id == "cat"


def test_another_encoding_is_told_and_gives_nothing(ros: Any) -> None:
    ros.heard(image("mono8"))
    assert ros.errors == ["expected rgb8 or bgr8, received mono8"]
    assert ros.published == []


def test_channels_of_ros_are_in_order(ros: Any) -> None:
    given = image()
    rows = np.frombuffer(given.data, np.uint8).reshape(64, -1).copy()
    rows[:, 0 : 64 * 3 : 3] = 7
    given.data = rows.tobytes()
    assert loaded("ros2_detector").pixels(given)[0, 0].tolist() == [255, 255, 7]


@pytest.fixture
def frigate(tmp_path: Path) -> Iterator[str]:
    """The address of a detector as Frigate asks it."""
    test_a_yolo_becomes_a_bundle_that_finds(tmp_path)
    module = loaded("frigate_detector")
    with (
        Detector(tmp_path / "y.edge") as detector,
        module.Server(detector, "127.0.0.1", 0) as server,
    ):
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def asked(address: str, parts: dict[str, bytes], path: str = "/v1/vision/detection") -> Any:
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a"\r\n\r\n%s\r\n'
        % (name.encode(), content)
        for name, content in parts.items()
    )
    head = {"Content-Type": "multipart/form-data; boundary=x"}
    request = urllib.request.Request(address + path, body + b"--x--\r\n", head)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(out, "PNG")
    return out.getvalue()


def test_frigate_is_told_what_a_picture_shows(frigate: str) -> None:
    code, told = asked(frigate, {"image": png()})
    assert (code, told["success"]) == (200, True)
    (found,) = told["predictions"]
    assert found.pop("confidence") == pytest.approx(0.5, abs=0.01)
    assert found == {"label": "cat", "x_min": 24, "y_min": 16, "x_max": 40, "y_max": 48}
    code, told = asked(frigate, {"image": png(), "min_confidence": b"0.9"})
    assert (code, told["predictions"]) == (200, [])


@pytest.mark.parametrize(
    ("parts", "path", "code"),
    [
        ({}, "/v1/vision/detection", 400),
        ({"image": b"no image"}, "/v1/vision/detection", 400),
        ({"image": b"x", "min_confidence": b"much"}, "/v1/vision/detection", 400),
        ({"image": b"x"}, "/v1/vision/face", 404),
    ],
)
def test_what_frigate_asks_wrongly_is_answered(
    frigate: str, parts: dict[str, bytes], path: str, code: int
) -> None:
    found, told = asked(frigate, parts, path)
    assert (found, told["success"]) == (code, False)
    assert told["error"]
    # It goes on.
    assert asked(frigate, {"image": png()})[0] == 200


LINE = re.compile(r"^proto = (\S+?)\.(\w+)\((.*?)\) +# (.*)$", re.MULTILINE)
TRAINED = {
    "scikit-learn": ("sklearn.ensemble", "RandomForestClassifier", {"n_estimators": 5}),
    "XGBoost": ("xgboost", "XGBClassifier", {"n_estimators": 5}),
    "LightGBM": ("lightgbm", "LGBMClassifier", {"n_estimators": 5, "verbose": -1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", TRAINED)
def test_the_line_of_the_manual_for_what_a_library_trained(library: str, tmp_path: Path) -> None:
    page = (HOOKS.parent.parent / "docs" / "frameworks.md").read_text("utf-8")
    (line,) = [hit for hit in LINE.finditer(page) if hit[4] == library]
    module, name, options = TRAINED[library]
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 4)).astype(np.float32)
    model = getattr(pytest.importorskip(module), name)(**options).fit(
        rows, (rows[:, 0] > rows[:, 1]).astype(int)
    )
    known: dict[str, Any] = {"model": model, "X": rows, line[1]: pytest.importorskip(line[1])}
    if "FloatTensorType" in line[3]:
        types = importlib.import_module("onnxmltools.convert.common.data_types")
        known["FloatTensorType"] = types.FloatTensorType
    proto = eval(f"{line[1]}.{line[2]}({line[3]})", known)
    edgeinfer.export(proto, tmp_path / "m.edge", targets=["onnxruntime"], data=[{"X": rows[:50]}])
    with edgeinfer.load(tmp_path / "m.edge") as session:
        found = session.run({"X": rows[50:]})
    labels = next(array for array in found.values() if array.dtype.kind != "f")
    np.testing.assert_array_equal(labels.astype(bool), model.predict(rows[50:]).astype(bool))
