"""What each engine is given of one model, made once and kept."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tflite_peers.models import EXPORTERS, MODELS
from edgeinfer.bundle.archive import Bundle
from edgeinfer.machine.fingerprint import known_facts

SHORT = (
    *("silero-vad-16k-op15", "basic-pitch", "ppocr-cls", "magika"),
    *("mobilenet-v2-torchscript", "yolo-head-torchscript"),
)
"""Models of the short form: real ones, and two architectures that every engine takes."""

LONG = (
    *SHORT,
    *("ppocrv4-det", "ppocrv4-rec", "blazeface-front", "wake-embedding", "aecmos-1663829550"),
    *("mobilenet-v3-large-torchscript", "efficientnet-lite0-torchscript", "resnet-18-torchscript"),
    *("resnet-50-torchscript", "unet-torchscript", "convnext-tiny-torchscript"),
    *("vit-tiny-torchscript", "minilm-torchscript", "crepe-tiny-torchscript"),
)

INT8 = (
    *("mobilenet-v2-torchscript", "efficientnet-lite0-torchscript", "resnet-18-torchscript"),
    *("resnet-50-torchscript", "yolo-head-torchscript", "vit-tiny-torchscript"),
    *("minilm-torchscript", "wake-embedding", "ppocrv4-rec"),
)
"""Models that are compared as integers too."""

SAMPLES = 24
"""Made-up inputs to calibrate with, the same for all."""

QUANTIZERS = {"onnxruntime-quantized": "onnxruntime", "nncf-quantized": "nncf"}
ENDINGS = {"onnxruntime-quantized": ".onnx", "nncf-quantized": ".xml", "ncnn": ".param"}


class AbsentError(RuntimeError):
    """There is no such file of this model, and why."""


class Files:
    """The files of one model in one precision.

    Args:
        model: its name in ``MODELS``.
        kind: ``fp32`` or ``int8``.
        folder: for what is made.
        targets: of bundles.
    """

    def __init__(self, model: str, kind: str, folder: Path, targets: Sequence[str]) -> None:
        self.kind = kind
        self._targets = targets
        self._model = MODELS[model]
        self.folder = folder / model
        self.folder.mkdir(parents=True, exist_ok=True)
        self.source = self._model.prepare(folder / "models")
        self.feeds = self._model.feeds(self.source, 0)
        self.given = self.folder / "feeds.npz"
        _store(self.given, self.feeds)

    @property
    def expected(self) -> dict[str, Any]:
        """What the model as published gives, in ONNX Runtime without optimisation."""
        from benchmarks.tflite_peers.pairs import expected

        return expected(self._model, self.source, self.feeds)

    def path(self, file: str, python: Path) -> Path:
        """Return what an engine opens; made by the interpreter that has its converter.

        Raises:
            AbsentError: it cannot be made.
        """
        if file == "onnx":
            return self.source
        if file == "bundle":
            return self.bundle()
        if file == "bundle-bf16":
            return self._consenting()
        if file in ("tflite", "onnx-int8"):
            return self._unpacked(".tflite" if file == "tflite" else ".onnx")
        if file == "pt2":
            return self._exported()
        target = self.folder / f"{file}{ENDINGS.get(file, '.' + file)}"
        if not target.exists() and file in QUANTIZERS:
            self._quantized(QUANTIZERS[file], target, python)
        elif not target.exists():
            self._converted(file, target, python)
        return target

    def bundle(self) -> Path:
        """Convert for every engine of this machine; what it cost stands next to the result."""
        target = self.folder / f"{self.kind}.edge"
        if target.exists():
            return target
        options = [word for name in self._targets for word in ("-t", name)]
        if self.kind == "int8":
            samples = self._samples()
            options += ["--precision", "static_wi8_ai8", "--calibration", str(samples), "--force"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _done(
            [
                *(sys.executable, "-m", "edgeinfer", "convert", str(self.source), *options),
                *("-o", str(target), "--quiet"),
            ]
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        (self.folder / f"{self.kind}.cpu_s").write_text(f"{seconds:.2f}", encoding="utf-8")
        return target

    def _consenting(self) -> Path:
        """Convert for OpenVINO, in bf16 too where its gate passes."""
        target = self.folder / "bf16.edge"
        if not target.exists():
            command = [sys.executable, "-m", "edgeinfer", "convert", str(self.source)]
            _done([*command, "-t", "openvino", "--also", "bf16", "-o", str(target), "--quiet"])
        return target

    def convert_cpu_s(self) -> float:
        """Seconds of processor time that making the bundle took; 0 where it was not made."""
        noted = self.folder / f"{self.kind}.cpu_s"
        return float(noted.read_text(encoding="utf-8")) if noted.exists() else 0.0

    def _samples(self) -> Path:
        target = self.folder / "samples.npz"
        if not target.exists():
            drawn = [self._model.feeds(self.source, 100 + i) for i in range(SAMPLES)]
            _store(target, {n: np.concatenate([s[n] for s in drawn]) for n in drawn[0]})
        return target

    def _unpacked(self, ending: str) -> Path:
        """Take an artifact of ours out of the bundle, with the files that it reads weights from."""
        folder = self.folder / f"{self.kind}{ending}"
        if not folder.exists():
            with Bundle.open(self.bundle()) as bundle:
                made = [bundle.paths(v)[0] for v in bundle.manifest.variants]
                found = [path for path in made if path.suffix == ending]
                if not found:
                    raise AbsentError(f"the bundle has no {ending} file")
                shutil.copytree(found[0].parent, folder)
        return next(folder.glob(f"*{ending}"))

    def _exported(self) -> Path:
        target = self.folder / "model.pt2"
        net, _, exporter = self._model.name.rpartition("-")
        if exporter not in EXPORTERS:
            raise AbsentError("published as ONNX only")
        if not target.exists():
            _done([sys.executable, "-m", "benchmarks.peers.files", net, str(target)])
        return target

    def _converted(self, kind: str, target: Path, python: Path) -> None:
        from benchmarks.peers.race import Peer

        with Peer(python) as peer:
            peer.ask("convert", kind=kind, source=str(self.source), target=str(target))
        if kind == "mnn":
            names = {"inputs": list(self.feeds), "outputs": list(self.expected)}
            target.with_suffix(".names.json").write_text(json.dumps(names), encoding="utf-8")

    def _quantized(self, tool: str, target: Path, python: Path) -> None:
        stacked = np.load(self._samples())
        one_by_one = self.folder / "samples-apart.npz"
        _store(one_by_one, {n: stacked[n][:, None] for n in stacked.files})
        script = Path(__file__).parents[1] / "precision_peers.py"
        _done([str(python), str(script), tool, str(self.source), str(one_by_one), str(target)])


def targets() -> tuple[str, ...]:
    """Profiles of this machine, machine code included."""
    wide = "avx512f" in known_facts().cpu.features
    return ("cpu", "openvino", "rpi5", "tvm-x86-64-v4" if wide else "tvm-x86-64-v3")


def _store(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


def _done(command: list[str], timeout_s: float = 600.0) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as e:
        raise AbsentError(f"{' '.join(command[1:4])} was not done after {timeout_s:g} s") from e
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise AbsentError(last[-240:])


def _export(net: str, target: str) -> None:
    import torch

    from tests.zoo.nets import torch_model

    module, example, _ = torch_model(net)
    given: Mapping[str, Any] = {n: t[:1] for n, t in example.items()}
    torch.export.save(torch.export.export(module, tuple(given.values())), target)


if __name__ == "__main__":
    _export(*sys.argv[1:])
