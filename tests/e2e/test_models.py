"""Real models: converted for both CPU engines, through the gate, and equal to plain ONNX Runtime.

The comparison is made on inputs the gate has not seen: the bundled vectors, run backwards along
their last axis (an image mirrored, a recording reversed), so that they stay as natural as before.
"""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import edgeinfer
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.types import Array
from tests.zoo import fetch

pytestmark = pytest.mark.models

SILERO = ("", "-16k-op15", "-16k-sequence", "-half", "-op18-ifless", "-openvino-16k")
SPEECHMOS = (
    "aecmos-1663829550",
    "aecmos-1663915512",
    "aecmos-1668423760",
    "dnsmos-bak-ovr",
    "dnsmos-v8",
    "dnsmos-sig",
    "dnsmos-sig-bak-ovr",
    "pdnsmos-sig-bak-ovr",
    "plcmos-v2",
)
WAKE = ("alexa", "hey-jarvis", "hey-mycroft", "timer", "weather", "embedding", "melspectrogram")
MODELS = (
    "basic-pitch",
    *(f"silero-vad{s}" for s in SILERO),
    "ppocrv4-det",
    "ppocrv4-rec",
    "ppocr-cls",
    "gutenye-ppocrv4-det",
    "gutenye-ppocrv4-rec",
    "gutenye-ppocr-cls",
    "ppocrv6-det",
    "ppocrv6-rec",
    "blazeface-front",
    "blazeface-back",
    "magika",
    *SPEECHMOS,
    *(f"wake-{w}" for w in WAKE),
)


def plain_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def reversed_feeds(feeds: dict[str, Array]) -> dict[str, Array]:
    """Float inputs backwards; integers select paths, so they stay."""
    return {n: a[..., ::-1].copy() if a.dtype.kind == "f" else a for n, a in feeds.items()}


def dims(shape: tuple[int | str | None, ...] | None) -> list[int | None]:
    """Static sizes, None for dynamic ones: exporters and engines name the latter differently."""
    assert shape is not None
    return [d if isinstance(d, int) else None for d in shape]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODELS)
def test_converts_and_gives_the_numbers_of_onnxruntime(name: str, tmp_path: Path) -> None:
    path = fetch(f"{name}.onnx")
    result = edgeinfer.export(path, tmp_path / "m.edge", targets=("cpu", "openvino"))
    assert result.report.passed
    plain = plain_session(path)
    names = [o.name for o in plain.get_outputs()]
    with edgeinfer.Bundle.open(result.path) as bundle:
        vectors = [feeds for feeds, _ in bundle.vectors()]
    formats = {v.format for v in result.manifest.variants}
    assert formats == {"onnx", "openvino_ir"}
    for backend in ("onnxruntime", "openvino"):
        with edgeinfer.load(result.path, backend=backend) as session:
            assert [i.name for i in session.inputs] == [i.name for i in plain.get_inputs()]
            assert [o.name for o in session.outputs] == names
            for spec, source in zip(session.inputs, plain.get_inputs(), strict=True):
                want = [d if isinstance(d, int) and d > 0 else None for d in source.shape]
                assert dims(spec.shape) == want, spec
            for feeds, record in zip(vectors, result.manifest.vectors, strict=True):
                # What is said of an extreme input holds for that very input.
                fresh = feeds if record.edge else reversed_feeds(feeds)
                answers = zip(names, plain.run(None, fresh), strict=True)
                got = session.run(fresh)
                for output, expected in answers:
                    budget = record.budget(budget_for("fp32"), output)
                    breaches = check(compare(expected, got[output]), budget)
                    assert not breaches, f"{backend} {output} {record.origin}: {breaches}"
    if any(None in dims(i.shape) for i in result.manifest.inputs):
        sizes = {tuple(a.shape for a in feeds.values()) for feeds in vectors}
        assert len(sizes) >= 2, "dynamic axes were checked at one size only"


@pytest.mark.parametrize("batch", [1, 3])
def test_plcmos_has_one_axis_less_for_one_recording(batch: int, tmp_path: Path) -> None:
    # It squeezes every axis that is 1, so the rank of its output follows from the batch.
    path = fetch("plcmos-v2.onnx")
    bundle = edgeinfer.export(path, tmp_path / "m.edge", targets=("cpu", "openvino")).path
    rng = np.random.default_rng(3)
    for frames in (16, 40):
        feeds = {
            "degraded_audio": rng.uniform(0, 1, (batch, 1, frames, 257)).astype(np.float32),
            "rater_embed": rng.uniform(0, 1, (batch, 64)).astype(np.float32),
        }
        (want,) = plain_session(path).run(None, feeds)
        assert want.shape == (() if batch == 1 else (batch,))
        for backend in ("onnxruntime", "openvino"):
            with edgeinfer.load(bundle, backend=backend) as session:
                got = session.run(feeds)["plcmos"]
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.timeout(300)
def test_silero_at_both_rates_and_refused_like_the_source(tmp_path: Path) -> None:
    # Its ranks follow from the input's length, and the rate picks one of two nets.
    path = fetch("silero-vad.onnx")
    bundle = edgeinfer.export(path, tmp_path / "m.edge", targets=("cpu", "openvino")).path
    plain, rng = plain_session(path), np.random.default_rng(2)
    for backend in ("onnxruntime", "openvino"):
        with edgeinfer.load(bundle, backend=backend) as session:
            for rate, length in ((16000, 512), (16000, 576), (8000, 256), (8000, 288)):
                feeds: dict[str, Array] = {
                    "input": rng.uniform(-1, 1, (2, length)).astype(np.float32),
                    "state": rng.uniform(-1, 1, (2, 2, 128)).astype(np.float32),
                    "sr": np.array(rate, np.int64),
                }
                got = session.run(feeds)
                for expected, name in zip(plain.run(None, feeds), got, strict=True):
                    breaches = check(compare(expected, got[name]), budget_for("fp32"))
                    assert not breaches, f"{backend} {rate} {length} {name}: {breaches}"
            long = {**feeds, "input": rng.uniform(-1, 1, (2, 1536)).astype(np.float32)}
            with pytest.raises(edgeinfer.errors.RunError):
                session.run(long)
            session.run(feeds)
