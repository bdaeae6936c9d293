"""Every model through the TFLite target: passed by the gate and equal to plain ONNX Runtime.

The files are run by LiteRT with XNNPACK at one and at two threads, at two sizes of every dynamic
axis, on inputs the gate has not seen. What must be refused is listed with its reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import edgeinfer
from edgeinfer.convert import passes, sources
from edgeinfer.errors import SourceError
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.types import Array
from tests.zoo import assets, fetch
from tests.zoo.light import LIGHT, light

torch = pytest.importorskip("torch")
nets = pytest.importorskip("tests.zoo.nets")
exported = pytest.importorskip("tests.zoo.exported")

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """How a model is fed.

    Attributes:
        first: sizes of inputs that are not fixed.
        second: others; each dynamic axis that can differ does.
        values: of inputs that select a path.
        low: smallest random value.
        high: largest.
        cnn: the file has no transposes but those of the model and one for each input and output.
        bound: sizes that the user has to fix.
    """

    first: Shapes = field(default_factory=dict)
    second: Shapes = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)
    low: float = -1.0
    high: float = 1.0
    cnn: bool = False
    bound: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)


def case(
    name: str,
    *sizes: Shapes,
    low: float = -1.0,
    high: float = 1.0,
    cnn: bool = False,
    rate: int = 0,
) -> Any:
    first, second = sizes or ({}, {})
    values = {"sr": rate} if rate else {}
    label = f"{name}-{rate}" if rate else name
    return pytest.param(name, Case(first, second, values, low, high, cnn), id=label)


def picture(name: str, first: tuple[int, ...], second: tuple[int, ...]) -> Any:
    return case(name, {"x": first}, {"x": second}, cnn=True)


def silero(name: str, first: int, second: int, rate: int = 0) -> Any:
    sizes = [{"input": (n, s), "state": (2, n, 128)} for n, s in ((1, first), (3, second))]
    return case(f"silero-vad{name}", *sizes, rate=rate)


def echo(name: str, width: int) -> Any:
    sizes = [{"input": (1, 3, frames, 160), "h0": (4, 1, width)} for frames in (40, 53)]
    return case(f"aecmos-{name}", *sizes, low=0)


ASSETS = (
    case(
        "basic-pitch",
        {"serving_default_input_2:0": (1, 43844, 1)},
        {"serving_default_input_2:0": (2, 43844, 1)},
        cnn=True,
    ),
    silero("", 512, 576, rate=16000),
    silero("", 256, 288, rate=8000),
    silero("-16k-op15", 512, 576, rate=16000),
    case("silero-vad-16k-sequence", {"input": (4, 576)}, {"input": (7, 576)}),
    silero("-half", 512, 576),
    silero("-op18-ifless", 512, 576, rate=16000),
    case("silero-vad-openvino-16k"),
    picture("ppocrv4-det", (1, 3, 320, 320), (2, 3, 96, 160)),
    picture("ppocrv4-rec", (1, 3, 48, 320), (2, 3, 48, 200)),
    picture("ppocr-cls", (1, 3, 48, 192), (2, 3, 32, 96)),
    picture("gutenye-ppocrv4-det", (1, 3, 320, 320), (2, 3, 96, 160)),
    picture("gutenye-ppocrv4-rec", (1, 3, 48, 320), (2, 3, 48, 200)),
    picture("gutenye-ppocr-cls", (1, 3, 48, 192), (2, 3, 32, 96)),
    picture("ppocrv6-det", (1, 3, 320, 320), (2, 3, 96, 160)),
    picture("ppocrv6-rec", (1, 3, 48, 320), (2, 3, 48, 200)),
    case("blazeface-front", cnn=True),
    case("blazeface-back", cnn=True),
    case("magika", {"bytes": (1, 2048)}, {"bytes": (3, 2048)}, high=257),
    echo("1663829550", 64),
    echo("1663915512", 64),
    echo("1668423760", 96),
    case("dnsmos-bak-ovr", {"input_1": (1, 901, 161)}, {"input_1": (2, 901, 161)}, cnn=True),
    case("dnsmos-sig", {"input_1": (1, 901, 161)}, {"input_1": (2, 901, 161)}, cnn=True),
    case("dnsmos-v8", {"input_1": (1, 900, 120)}, {"input_1": (2, 900, 120)}, cnn=True),
    case("dnsmos-sig-bak-ovr", {"input_1": (1, 144160)}, {"input_1": (2, 144160)}, cnn=True),
    case("pdnsmos-sig-bak-ovr", {"input_1": (1, 144160)}, {"input_1": (2, 144160)}, cnn=True),
    case(
        "plcmos-v2",
        {"degraded_audio": (1, 1, 40, 257), "rater_embed": (1, 64)},
        {"degraded_audio": (3, 1, 29, 257), "rater_embed": (3, 64)},
        low=0,
    ),
    case("wake-alexa"),
    case("wake-hey-jarvis"),
    case("wake-hey-mycroft"),
    case("wake-hey-rhasspy"),
    case("wake-timer"),
    case("wake-weather"),
    case(
        "wake-embedding",
        {"input_1": (1, 76, 32, 1)},
        {"input_1": (3, 76, 32, 1)},
        low=0,
        high=10,
        cnn=True,
    ),
    case("wake-melspectrogram", {"input": (1, 12400)}, {"input": (2, 16000)}, low=-3000, high=3000),
)

REFUSED = {"silero-vad.jit": "TorchScript"}
"""Models that no target takes, and a word of the reason."""

SIZES = {
    "batch": (1, 3),
    "height": (64, 96),
    "width": (96, 32),
    "tokens": (16, 7),
    "frames": (50, 23),
    "samples": (1600, 2404),
}
BAKED = {("conformer", "script"): "frames"}
"""Sizes that an exporter fixed: its ONNX file runs at no other, although it declares them open."""

CNNS = (
    *("efficientnet-lite0", "efficientnet-b0", "mobilenet-v2", "mobilenet-v3-small", "resnet-18"),
    *("mobilenet-v3-large", "resnet-50", "unet", "convnext-tiny", "yolo-head", "mtcnn-pnet"),
    *("mtcnn-rnet", "mtcnn-onet", "crepe-tiny", "crepe-full", "audio"),
)


def plain_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds_of(session: Any, one: Case, shapes: Shapes, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in session.get_inputs():
        shape = shapes.get(value.name, tuple(value.shape))
        if value.name in one.values:
            feeds[value.name] = np.array(one.values[value.name], np.int64).reshape(shape)
        elif value.type == "tensor(float)":
            feeds[value.name] = rng.uniform(one.low, one.high, shape).astype(np.float32)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, np.int64)
            feeds[value.name][-1, shape[1] // 2 :] = 0
        else:
            kind = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}[value.type]
            feeds[value.name] = rng.integers(1, int(max(one.high, 2)), shape).astype(kind)
    return feeds


def assert_right(path: Path, one: Case, folder: Path) -> None:
    """Convert; the gate passes; LiteRT gives ONNX Runtime's numbers; no transpose too many."""
    result = edgeinfer.export(
        path, folder / "m.edge", targets=("android",), input_shapes=one.bound or {}
    )
    assert result.report.passed
    assert {v.format for v in result.manifest.variants} == {"tflite"}
    plain = plain_session(path)
    names = [o.name for o in plain.get_outputs()]
    for threads in (1, 2):
        with edgeinfer.load(result.path, backend="litert", threads=threads, measure=False) as run:
            for seed, shapes in ((11, one.first), (12, one.second)):
                feeds = feeds_of(plain, one, shapes, seed)
                got = run.run(feeds)
                for name, expected in zip(names, plain.run(None, feeds), strict=True):
                    breaches = check(compare(expected, got[name]), budget_for("fp32"))
                    shown = {k: v.shape for k, v in feeds.items()}
                    assert not breaches, f"{threads} threads, {shown}, {name}: {breaches}"
    if one.cnn:
        written = result.report.variants[0].ops.get("TRANSPOSE", 0)
        allowed = allowed_transposes(path)
        assert written <= allowed, f"{written} transposes, allowed {allowed}"


def allowed_transposes(path: Path) -> int:
    """Those that the model has itself, and one for each input and output with channels."""
    model = passes.normalise(sources.read(path).model).model
    edges = [*model.graph.inputs, *model.graph.outputs]
    own = sum(node.op_type == "Transpose" for graph in model.graphs() for node in graph)
    return own + sum(len(v.shape or ()) >= 3 for v in edges)


@pytest.mark.parametrize(("name", "one"), ASSETS)
def test_an_asset(name: str, one: Case, tmp_path: Path) -> None:
    assert_right(fetch(f"{name}.onnx"), one, tmp_path)


@pytest.mark.parametrize("exporter", exported.EXPORTERS)
@pytest.mark.parametrize("name", nets.NETS)
def test_a_net_by_both_exporters(name: str, exporter: str, tmp_path: Path) -> None:
    path = exported.exported(name, exporter)
    fixed = BAKED.get((name, exporter))
    first: dict[str, tuple[int, ...]] = {}
    second: dict[str, tuple[int, ...]] = {}
    bound: dict[str, tuple[int | None, ...]] = {}
    for value in plain_session(path).get_inputs():
        pairs = [SIZES[d] if isinstance(d, str) else (d, d) for d in value.shape]
        first[value.name] = tuple(pair[0] for pair in pairs)
        if fixed in value.shape:
            sizes = zip(first[value.name], value.shape, strict=True)
            bound[value.name] = tuple(s if d in (fixed, s) else None for s, d in sizes)
        second[value.name] = tuple(
            pair[d != fixed] for pair, d in zip(pairs, value.shape, strict=True)
        )
    assert first != second
    vocabulary = 30000 if name == "minilm" else 1000
    high = vocabulary if "bert" in name or name == "minilm" else 1
    assert_right(path, Case(first, second, {}, -1, high, name in CNNS, bound), tmp_path)


@pytest.mark.parametrize("name", LIGHT)
def test_a_classic_net(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    onnx.save(light(name), path)
    assert_right(path, Case(low=0, cnn=True), tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=REFUSED[name]):
        edgeinfer.export(fetch(name), tmp_path / "m.edge", targets=("android",))


def test_no_model_is_left_out() -> None:
    tried = {f"{p.values[0]}.onnx" for p in ASSETS} | set(REFUSED)
    weights = {
        *("efficientnet-lite0.pth", "mtcnn-pnet.pt", "mtcnn-rnet.pt", "mtcnn-onet.pt"),
        *("crepe-tiny.pth", "crepe-full.pth", "minilm.safetensors"),
        # The same net as the .onnx files, for checks of weights only.
        "silero-vad-16k.safetensors",
    }
    models = {n for n in assets() if n.endswith((".onnx", ".pt", ".pth", ".jit", ".safetensors"))}
    assert models == tried | weights
    assert len(REFUSED) == 1
