"""A language model to a bundle: read, pack, compile, judge, write."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact
from edgeinfer.backends.engines import import_tvm
from edgeinfer.backends.llm.backend import INPUT, NAME, open_executor, signature
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.backends.tvm import library
from edgeinfer.bounded import open_file, read_bounded
from edgeinfer.bundle.manifest import (
    EngineRequirement,
    FileRecord,
    Manifest,
    SourceRecord,
    Variant,
)
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.convert.late import late
from edgeinfer.convert.llm import judge, source, tokenizer
from edgeinfer.convert.llm.adapters import Adapter, named_adapters, with_adapter
from edgeinfer.convert.llm.blocks import Integers, StoredTensor
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.llm.source import LlmSource
from edgeinfer.convert.lower.tvm.machines import MACHINES, Machine
from edgeinfer.convert.pipeline.clock import StageClock, Stages
from edgeinfer.convert.pipeline.request import resolve_profiles
from edgeinfer.convert.quantize.recipe import STORED
from edgeinfer.convert.verify import Answer, Change, Expected, Report, VariantResult, Vector
from edgeinfer.convert.verify.gate import NOT_RUN, verify_variant
from edgeinfer.errors import LoadError, NotAvailableError, UsageError, VerifyError
from edgeinfer.llm import LlmConfig
from edgeinfer.llm.generation import FORMAT, TOKENIZER_NAME
from edgeinfer.llm.tape import FILE_NAME as TAPE_NAME
from edgeinfer.llm.tape import Tape
from edgeinfer.machine.device import DeviceKind
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass
from edgeinfer.types import Progress

if TYPE_CHECKING:
    from edgeinfer.convert.llm.tower import AddedTower
    from edgeinfer.convert.pipeline.entry import ExportResult

PRECISIONS = (STORED, "w4", "w8", "fp16", "bf16", "fp32")

_ALIASES = {"int4": "w4", "int8": "w8", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

_HERE = "cpu"
_BEST = {
    "x86_64": ("x86-64-v4-amx", "x86-64-v4-vnni", "x86-64-v3-vnni", "x86-64-v3"),
    "aarch64": ("cortex-a76",),
}
"""Instruction sets for this machine's CPU, the fastest one first."""

_DEVICES = {"rpi5": "cortex-a76", "tvm-x86-64-v4": "x86-64-v4-vnni"}
"""Of targets whose profile names none, or one without instructions that matter here."""

_GPUS = {
    "jetson": ("sm_87", "sm_110"),
    "jetson-orin": ("sm_87",),
    "jetson-thor": ("sm_110",),
    "cuda": ("sm_80", "sm_90", "sm_100", "sm_120"),
}
"""Architectures of targets with NVIDIA GPUs. Products of bfloat16 begin with 8.0, and CUDA 13 makes
no code for a Xavier (7.2)."""

_BLOCK = 32

_MOST_TAPE = 64 << 20
"""Bytes of a tape, which is our own."""

_STAGES = 4
"""Stages of one target: weights are rounded, packed, judged on text, and run."""


def export(
    path: Path,
    output: str | Path | None = None,
    *,
    targets: Sequence[str] = (_HERE,),
    precision: str = STORED,
    block: int = _BLOCK,
    name: str | None = None,
    calibration: Path | None = None,
    adapters: Mapping[str, str | Path] | None = None,
    text_only: bool = False,
    unverified: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    trust_source: bool = False,
) -> ExportResult:
    """Convert a language model.

    Args:
        path: a GGUF file or a Hugging Face folder.
        output: the bundle; default ``<name>.edge``.
        targets: names of device profiles.
        precision: Precision of the weights, one of ``PRECISIONS``.
        block: weights that share a scale, of ``w4`` and ``w8``.
        name: Name of the bundle; default the file's.
        calibration: a file of text by which ``w4`` and ``w8`` are rounded.
        adapters: low-rank adapters by the names that requests have for them, see
            ``edgeinfer.convert.llm.adapters``.
        text_only: leave a vision part out.
        unverified: write artifacts that nothing here can run; the bundle says so forever.
        overwrite: replace an existing bundle.
        progress: Called with what is being done.
        trust_source: read the files without bounds of memory and time.

    Raises:
        SourceError: the model cannot be read, or takes far more memory or time than its size
            explains.
        VerifyError: the result is too far from the model in float32.
        UsageError: the request contradicts itself or the model.
        NotAvailableError: what converts is not installed.
        OutputError: the bundle cannot be written.
    """
    precision = _ALIASES.get(precision, precision)
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise UsageError(f"precision {precision!r}: of language models there are {known}")
    if calibration is not None and precision not in ("w4", "w8"):
        raise UsageError(
            f"calibration: it is for w4 and w8, and {precision} rounds nothing by text"
        )
    if block % 32 or block < 32:
        raise UsageError(f"block {block}: expected a multiple of 32")
    if block != _BLOCK and precision not in ("w4", "w8"):
        raise UsageError(f"block {block}: it is for w4 and w8; weights of {precision} have none")
    codes = [_code(p) for p in resolve_profiles(targets)]
    clock = StageClock(progress, stages=Stages(total=1 + _STAGES * len(codes)))
    with clock.stage("read the model"):
        # What its files describe may be of any size: they are read where that ends nothing first.
        paths = {name: Path(place) for name, place in (adapters or {}).items()}
        late("pipeline.worker").read_apart(
            *("read a language model", None, path, text_only, paths),
            files=[path, *paths.values()],
            trusted=trust_source,
        )
        given = source.read(path, text_only)
        beside, notes = tokenizer.files(given)
        added, more = named_adapters(adapters or {}, given.config)
        record = SourceRecord(given.format, path.name, _digest(path))
    title = name or path.stem
    report = Report(
        name=title,
        source=record,
        inputs=signature(given.config)[:1],
        outputs=signature(given.config)[1:],
        source_bytes=sum(t.data.nbytes for t in given.tensors.values()),
    )
    report.seconds = clock.seconds
    report.changes.append(Change("source", (*_about(given), *notes, *more)))
    with BundleWriter(output or f"{title}.edge", overwrite=overwrite) as writer:
        job = _Job(given, precision, block, calibration, beside, added, report, clock, writer)
        if given.vision is not None:
            clock.stages.expect(1 + _STAGES * len(codes))
            with clock.stage("convert the vision tower"):
                how = (given, given.vision, [code.profile.name for code in codes], unverified)
                job.tower = late("llm.tower").add(writer, *how)
        variants = [job.variant(code, unverified) for code in codes]
        return job.finish(title, record, variants)


@dataclass(frozen=True, slots=True)
class _Code:
    """What is made for a target.

    Attributes:
        profile: Profile of the device.
        machine: Instruction set of the CPU; None for code of GPUs.
        architectures: Architectures of GPUs; empty for code of a CPU.
    """

    profile: Profile
    machine: Machine | None
    architectures: tuple[str, ...] = ()

    def write(
        self, config: LlmConfig, tensors: Mapping[str, Any], folder: Path, **how: Any
    ) -> tuple[str, ...]:
        """Write the files of a variant; returns what the user should know."""
        if self.machine is None:
            from edgeinfer.convert.llm import cuda_variant

            adapters = how["adapters"]
            return cuda_variant.write(
                config, tensors, self.architectures, folder, adapters=adapters
            )
        from edgeinfer.convert.llm import variant

        measure = self.profile.name == _HERE
        return variant.write(config, tensors, self.machine, folder, measure=measure, **how)

    @property
    def device(self) -> DeviceKind:
        """Kind of unit that runs it."""
        return "gpu" if self.machine is None else "cpu"

    @property
    def constraints(self) -> dict[str, str]:
        """What a device has to be."""
        if self.machine is None:
            return {"os": "linux", "arch": " ".join(self.profile.arch), "device": self.device}
        return {"os": self.machine.system, "arch": self.machine.arch, "device": self.device}


def _code(profile: Profile) -> _Code:
    """What a target's code is made for."""
    chosen = _DEVICES.get(profile.name, profile.machine)
    if profile.name in _GPUS:
        return _Code(profile, None, _GPUS[profile.name])
    if chosen and (cuda := MACHINES[chosen].cuda):
        return _Code(profile, None, (cuda,))
    return _Code(profile, _machine(profile))


def _machine(profile: Profile) -> Machine:
    """The instruction set that a target's code is made for."""
    if profile.name == _HERE:
        here = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
        known = library.cpu_features()
        for name in _BEST.get(here, ()):
            if set(MACHINES[name].features) <= known:
                return MACHINES[name]
        raise UsageError(f"target {_HERE!r}: no code of language models is made for this processor")
    chosen = _DEVICES.get(profile.name, profile.machine)
    if not chosen or MACHINES[chosen].system != "linux":
        raise UsageError(
            f"target {profile.name!r}: no code of language models is made for it; there is for "
            f"{_HERE}, rpi5, {', '.join(_GPUS)} and targets tvm-… of devices with Linux"
        )
    return MACHINES[chosen]


def _digest(path: Path) -> str:
    """Of a file, or of all files of a folder that are read."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    whole = hashlib.sha256()
    for place in files:
        with open_file(place) as file:
            part = hashlib.file_digest(file, "sha256").hexdigest()
        if path.is_file():
            return part
        whole.update(f"{place.name} {part}\n".encode())
    return whole.hexdigest()


def _about(given: LlmSource) -> list[str]:
    parts = ", ".join(f"{k} {v['bytes'] / 1e6:.1f} MB" for k, v in source.about(given).items())
    config = given.config
    return [
        f"{config.family}: {config.layers} layers of {config.hidden}, {config.vocab} tokens",
        f"weights: {parts}",
    ]


def prepared(
    tensors: Mapping[str, StoredTensor],
    precision: str,
    block: int,
    known: Mapping[str, Integers] | None = None,
) -> dict[str, Any]:
    """Weights in the precision that was requested; norms and biases stay as they are.

    Args:
        tensors: weights.
        precision: one of ``PRECISIONS``.
        block: weights that share a scale.
        known: weights that are rounded already.
    """
    if precision == STORED:
        return dict(tensors)
    from edgeinfer.convert.llm.pack import rounded
    from edgeinfer.convert.llm.source import floats

    made: dict[str, StoredTensor | Integers] = {}
    for name, tensor in tensors.items():
        if len(tensor.shape) == 1 or name.endswith("ffn_gate_inp"):
            made[name] = tensor
        elif known and name in known:
            made[name] = known[name]
        elif precision in ("w4", "w8"):
            # A row of logits is one token's: four bits cost there what eight do not.
            is_end = name in ("token_embd", "output")
            bits = 8 if precision == "w8" or is_end else 4
            flat = tensor.float32().reshape(-1, tensor.shape[-1])
            made[name] = rounded(flat, bits, block)
        else:
            made[name] = _converted(floats(tensor.float32()), precision)
    return made


def _converted(tensor: StoredTensor, precision: str) -> StoredTensor:
    values = tensor.float32()
    if precision == "fp32":
        return tensor
    if precision == "fp16":
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.isfinite(half).all():
            raise UsageError("precision 'fp16': a weight is beyond its range; take bf16 or fp32")
        return StoredTensor("F16", tensor.shape, half.view(np.uint8))
    bits = values.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return StoredTensor("BF16", tensor.shape, nearest.astype(np.uint16).view(np.uint8))


def _precision(tensors: Mapping[str, Any]) -> str:
    """What the weights of matrices are, the most bytes first."""
    found: dict[str, int] = {}
    for value in tensors.values():
        if isinstance(value, Integers):
            levels, count = value.high - value.low + 1, value.values.size
            label = f"w{next((b for b in (4, 5, 6) if levels <= 1 << b), 8)}"
        elif len(value.shape) == 1:
            continue
        else:
            count = value.data.size
            label = _LABELS.get(value.kind, "")
            label = label or f"w{_bits(value.kind)}"
        found[label] = found.get(label, 0) + count
    return "+".join(sorted(found, key=lambda k: -found[k]))


_LABELS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def _bits(kind: str) -> int:
    """Bits that weights of a type are kept in."""
    if kind in ("IQ4_NL", "IQ4_XS", "Q8_0"):
        return 8
    if kind == "MXFP4":
        return 5
    return {"Q2_K": 4, "Q3_K": 4}.get(kind, int(kind[1]))


@dataclass(slots=True)
class _Job:
    """What variants of one model have in common."""

    given: LlmSource
    precision: str
    block: int
    calibration: Path | None
    beside: dict[str, bytes]
    adapters: dict[str, Adapter]
    report: Report
    clock: StageClock
    writer: BundleWriter
    vectors: tuple[Vector, ...] = ()
    answers: tuple[Answer, ...] = ()
    tower: AddedTower | None = None
    seeing: dict[str, judge.Quality] = field(default_factory=dict)

    def variant(self, code: _Code, unverified: bool) -> Variant:
        """Write one target's files and judge them."""
        given, profile = self.given, code.profile
        try:
            import_tvm()
        except ImportError as e:
            hint = "pip install 'edgeinfer[tvm]'"
            raise NotAvailableError(f"language models need TVM to be converted: {e}; {hint}") from e
        from edgeinfer.convert.llm.plan import CACHES

        with self.clock.stage("round weights"):
            tensors = prepared(given.tensors, self.precision, self.block, self._calibrated())
        precision = _precision(tensors)
        id = f"{profile.name}-{FORMAT}-{precision}"
        folder = self.writer.folder(f"variants/{id}")
        with self.clock.stage(f"pack and compile for {profile.name}"):
            # The usual type of cache loses no more than the weights do.
            caches = ("float32", *CACHES) if precision == "fp32" else CACHES
            how: Any = {"caches": caches, "adapters": self.adapters}
            lines = code.write(given.config, tensors, folder, **how)
        for name, data in self.beside.items():
            (folder / name).write_bytes(data)
        found, skipped = self._judged(folder)
        quality = next(iter(found.values()), None)
        lines = (*lines, str(quality or skipped))
        lines += tuple(f"behind an image: {each}" for each in [*self.seeing.values()][:1])
        lines += tuple(self._choose_caches(folder, found))
        lines = (*lines, *self._judge_adapters(id, folder))
        result = self._verified(id, precision, folder, lines, code.device)
        if result.verdict == NOT_RUN and not unverified:
            hint = "--unverified writes it all the same and marks it forever as not verified"
            raise VerifyError(f"{id}: {result.failure()}; {hint}", self.report.to_json())
        if not result.passed and result.verdict != NOT_RUN:
            raise VerifyError(f"{id}: {result.failure()}", self.report.to_json())
        self._hold(id, found)
        return Variant(
            id=id,
            target=profile.name,
            format=FORMAT,
            precision=precision,
            files=self._files(id, code.architectures),
            engines=(EngineRequirement(NAME),),
            constraints=code.constraints,
            accuracy=result.accuracy(),
            latency_ms=min(result.engines[0].latency_ms.values(), default=None),
            unverified=result.failure() if result.verdict == NOT_RUN else "",
        )

    def _calibrated(self) -> dict[str, Integers]:
        """Matrices rounded by the calibration text."""
        if self.calibration is None:
            return {}
        from edgeinfer.convert.llm import gptq

        sequences = gptq.read(self.calibration, self.beside[TOKENIZER_NAME])
        oracle = Oracle(self.given.config, self.given.tensors)
        bits = 4 if self.precision == "w4" else 8
        count = sum(map(len, sequences))
        note = f"rounded by {count} tokens of {self.calibration.name} (GPTQ)"
        self.report.changes.append(Change("round", (note,)))
        return gptq.rounded_layers(oracle, sequences, bits, self.block)

    def _files(self, id: str, architectures: tuple[str, ...]) -> tuple[FileRecord, ...]:
        from edgeinfer.llm import config, gpu, tape

        code = [gpu.code_name(a) for a in architectures] or [tape.LIBRARY_NAME]
        first = (config.FILE_NAME, tape.FILE_NAME, tape.WEIGHTS_NAME, *code)
        names = (*first, *sorted(self.beside))
        return tuple(self.writer.adopt(f"variants/{id}/{name}") for name in names)

    def _judged(self, folder: Path) -> tuple[dict[str, judge.Quality], str]:
        """Compare with float32, by type of cache; right answers are kept as bundle's vectors."""
        oracle = Oracle(self.given.config, self.given.tensors)
        ids, self.seeing = judge.texts(self.beside[TOKENIZER_NAME]), {}
        longest = max(len(i) for i in ids)
        if self.tower is not None:
            longest = max(longest, judge.length_behind(self.tower.sample))
        pages = -(-longest // 16)
        kinds = Tape.from_json(read_bounded(folder / TAPE_NAME, _MOST_TAPE)).caches
        with contextlib.ExitStack() as stack:
            try:
                executors = [
                    open_executor(folder, ExecutorSizes(pages, longest, 1, pages * 16, kind))
                    for kind in kinds
                ]
            except (LoadError, NotAvailableError) as e:
                return {}, f"not judged here: {e}"
            for executor in executors:
                stack.callback(executor.close)
            with self.clock.stage("judge on text"):
                found, last = judge.compare(oracle, executors, ids)
                if self.tower is not None:
                    seen = judge.behind_image(oracle, executors, ids, self.tower.sample)
                    self.seeing = dict(zip(kinds, seen, strict=True))
        if not self.vectors:
            self.vectors = tuple(
                Vector({INPUT.name: tokens}, f"text:{i}") for i, tokens in enumerate(ids)
            )
            self.answers = tuple(
                Answer({"logits": logits}, "float32 by definition", ("float32",), {})
                for logits in last
            )
        return dict(zip(kinds, found, strict=True)), ""

    def _judge_adapters(self, id: str, folder: Path) -> list[str]:
        """Compare each adapter with the model in float32 that it is merged into.

        Raises:
            VerifyError: a limit was left.
        """
        lines: list[str] = []
        ids = judge.texts(self.beside[TOKENIZER_NAME]) if self.adapters else []
        longest = max(map(len, ids), default=0)
        for at, (name, adapter) in enumerate(self.adapters.items()):
            pages = -(-longest // 16)
            try:
                executor = open_executor(folder, ExecutorSizes(pages, longest, 1, pages * 16))
            except (LoadError, NotAvailableError) as e:
                return [f"adapters were not judged here: {e}"]
            with contextlib.closing(executor), self.clock.stage(f"judge adapter {name}"):
                oracle = Oracle(self.given.config, with_adapter(self.given.tensors, adapter))
                (found,), _ = judge.compare(oracle, [executor], ids, at)
            lines.append(f"adapter {name}: {found}")
            if breaches := self._limits.breaches(found):
                why = "; ".join(breaches)
                raise VerifyError(f"{id}: adapter {name}: {why}", self.report.to_json())
        return lines

    def _choose_caches(self, folder: Path, found: Mapping[str, judge.Quality]) -> list[str]:
        """Leave types of caches out of the tape that lose more than the limits allow."""
        lines, lost = [], []
        for kind, quality in list(found.items())[1:]:
            breaches = self._breaches(kind, quality)
            lost += [kind] if breaches else []
            verdict = f"not offered: {'; '.join(breaches)}" if breaches else str(quality)
            lines.append(f"cache {kind}: {verdict}")
        if lost:
            path = folder / TAPE_NAME
            tape = Tape.from_json(read_bounded(path, _MOST_TAPE))
            kept = tuple(kind for kind in tape.caches if kind not in lost)
            path.write_text(replace(tape, caches=kept).to_json(), encoding="utf-8")
        return lines

    def _breaches(self, kind: str, quality: judge.Quality) -> list[str]:
        """List what leaves the limits with a type of cache, behind an image too."""
        found = self._limits.breaches(quality)
        if (seen := self.seeing.get(kind)) is not None:
            found += [f"behind an image {line}" for line in self._limits.breaches(seen)]
        return found

    @property
    def _limits(self) -> judge.TextLossLimits:
        return judge.LIMITS.get(self.precision, judge.STORED)

    def _verified(
        self, id: str, precision: str, folder: Path, notes: tuple[str, ...], device: DeviceKind
    ) -> VariantResult:
        note = "logits of texts were compared with those of the definition in float32 alone"
        self.report.expected = Expected(self.answers, (note,))
        self.report.vectors = self.vectors
        artifact = Artifact(
            FORMAT, folder / "llm.json", self.report.inputs, self.report.outputs, precision
        )
        with self.clock.stage(f"verify {id}"):
            result = verify_variant(
                *(id, artifact, [registry.get(NAME)], self.vectors, self.report.expected),
                precision=precision,
                notes=notes,
                device=device,
                # A prompt is no use to time: what counts is a step, which `edgeinfer bench` times.
                timed=False,
            )
        self.report.variants.append(result)
        return result

    def _hold(self, id: str, found: Mapping[str, judge.Quality]) -> None:
        """Refuse what is too far from the model in float32.

        Raises:
            VerifyError: a limit was left.
        """
        if not found:
            return
        (kind, quality), *_ = found.items()
        caches = {kind: each.to_json() for kind, each in found.items()}
        whole = {**quality.to_json(), "asked": self.precision, "caches": caches}
        if self.seeing:
            whole["images"] = {kind: each.to_json() for kind, each in self.seeing.items()}
        self.report.language[id] = whole
        if breaches := self._breaches(kind, quality):
            raise VerifyError(f"{id}: " + "; ".join(breaches), self.report.to_json())

    def finish(self, title: str, record: SourceRecord, variants: list[Variant]) -> ExportResult:
        """Write vectors, report and manifest."""
        from edgeinfer.convert.pipeline.stages import finished

        report, writer = self.report, self.writer
        vectors = tuple(
            writer.add_vector(report.inputs, report.outputs, v.feeds, a.outputs, v.origin)
            for v, a in zip(self.vectors, self.answers, strict=True)
        )
        extra = (
            *(() if self.tower is None else self.tower.files),
            writer.add_bytes("report.json", _json(report.to_json())),
            writer.add_bytes("report.html", report.to_html().encode()),
        )
        manifest = Manifest(
            name=title,
            inputs=report.inputs,
            outputs=report.outputs,
            variants=tuple(variants),
            vectors=vectors,
            source=record,
            tools=_tools(),
            extra_files=extra,
        )
        return finished(writer, manifest, report)


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _tools() -> dict[str, str]:
    from importlib.metadata import version

    names = ("apache-tvm", "numpy", "tokenizers")
    return {name: version(name) for name in names}
