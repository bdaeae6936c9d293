"""Nets of the architecture list as Core AI assets, in Apple's runtime on the CPU."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.tflite_peers.compare import decibels
from benchmarks.tflite_peers.models import MODELS
from benchmarks.tflite_peers.pairs import expected
from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.process.isolated import IsolatedBackend
from edgeinfer.convert.lower.coreai.target import CoreAITarget
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.convert.sources import read
from tests.convert.lower.coreai.run import needs_coreai

pytestmark = [pytest.mark.models, pytest.mark.timeout(900), needs_coreai]

NETS = (
    *("mobilenet-v2", "mobilenet-v3-small", "resnet-50", "efficientnet-b0", "yolo-head", "unet"),
    *("vit-tiny", "convnext-tiny", "bert-mini", "lstm", "gru", "bilstm", "bigru", "conformer"),
)
NAMES = (
    *(f"{net}-torchscript" for net in NETS),
    *("basic-pitch", "silero-vad", "wake-alexa", "wake-embedding", "magika", "ppocrv4-rec"),
)


@pytest.mark.parametrize(("precision", "enough"), [("fp32", 85.0), ("fp16", 30.0)])
@pytest.mark.parametrize("name", NAMES)
def test_numbers(name: str, precision: str, enough: float, tmp_path: Path) -> None:
    model = MODELS[name]
    source = model.prepare(tmp_path)
    feeds = model.feeds(source, 0)
    graph = read(str(source)).model
    made = CoreAITarget().lower(
        normalise(graph).model, profiles.load("ios27"), LowerOptions(precision), tmp_path
    )
    artifact = Artifact(made.format, made.files[0], input_specs(graph), output_specs(graph))
    with IsolatedBackend("coreai") as backend:
        ready = backend.load(artifact, LoadOptions())
        got = ready.run({n: np.asarray(v) for n, v in feeds.items()})
        ready.close()
    assert decibels(got, expected(model, source, feeds)) > enough
