"""``edgeinfer doctor``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer._version import __version__
from edgeinfer.cli.declared import declared
from edgeinfer.cli.output import Output, output_options, size, table, together
from edgeinfer.cli.trust import trust_options
from edgeinfer.records import dataclass
from edgeinfer.runtime.options import ChoiceOptions

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
EXTRAS = (
    ("convert", ("onnx", "onnx_ir", "onnxruntime", "jinja2"), "converting models"),
    ("apple", ("onnx", "onnx_ir", "coremltools", "jinja2"), "converting for Apple, nothing else"),
    ("torch", ("torch", "onnxscript"), "PyTorch models as a source"),
    ("media", ("PIL", "soundfile", "soxr"), "images and recordings as inputs"),
    ("text", ("tokenizers",), "texts as inputs"),
    ("llm", ("tokenizers", "llguidance", "jinja2"), "language models"),
    ("serve", ("grpc", "httptools", "orjson", "prometheus_client", "uvicorn"), "the server"),
    ("camera", ("cv2",), "cameras and videos"),
    ("sign", ("cryptography",), "signed and encrypted bundles"),
    ("telemetry", ("opentelemetry",), "counters in OpenTelemetry"),
)
"""Extra, the modules it brings, and what they are for; engines are asked through their probes."""

PACKAGES = {
    "PIL": "pillow",
    "onnx_ir": "onnx-ir",
    "cv2": "opencv-python-headless",
    "opentelemetry": "opentelemetry-api",
    "grpc": "grpcio",
    "prometheus_client": "prometheus-client",
}
"""Modules whose package has another name."""

TEXTS, TOKENIZERS = "llm", "tokenizers"
"""The engine of language models, and the module without which it reads and writes no texts."""

CHECKER = "reference"
"""The backend that is there to compare with; a machine that has no other one cannot work."""

LOW_MEMORY_MB = 512

_EXTRA_OF = re.compile(r"edgeinfer\[[^\]]+\]")


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was looked at.

    Attributes:
        what: that.
        ok: whether it is as it should be; None where that is a matter of need.
        found: what is there.
        fix: what to do; empty when nothing is wrong.
    """

    what: str
    ok: bool | None
    found: str
    fix: str = ""


@click.command()
@click.argument("bundle", required=False)
@declared(ChoiceOptions, ("policy",))
@trust_options()
@output_options
def doctor(bundle: str | None, policy: str, trust: dict[str, Any], out: Output) -> None:
    """Look for what is missing here and say how to get it.

    With BUNDLE, also say what would run it here, and of each other engine why it would not.

    Exits with 3 when no engine can run here, or nothing in BUNDLE; an evaluator is no engine.
    """
    findings = [*_machine(), *_engines(), *_idle_gpu(), *_extras(), _cache(), _memory(), *_speed()]
    runs: bool | None = None
    if bundle is not None:
        from edgeinfer.cli.rejections import findings_of

        about = [DoctorFinding(*found) for found in findings_of(bundle, policy, trust)]
        runs = any(f.ok for f in about)
        findings += about
    engines = [f for f in findings if f.what.startswith("engine ") and f.ok]
    usable = any(f.what != f"engine {CHECKER}" for f in engines)
    lacking = "" if usable else f"no engine can run here: {_smallest()}"
    if usable and {f.what for f in engines} <= {f"engine {CHECKER}", f"engine {TEXTS}"}:
        lacking = f"ready for language models alone; for others: {_smallest()}"
    if usable and runs is not None and not runs:
        usable, lacking = (
            False,
            f"no engine here runs anything in {bundle}; the lines above say why",
        )
    out.result({"usable": usable, "findings": findings}, lambda: _view(findings, lacking))
    if not usable:
        raise click.exceptions.Exit(3)


def _machine() -> Iterator[DoctorFinding]:
    # JetPack 6 has 3.10, which runs bundles; what converts needs more.
    new_enough = sys.version_info >= (3, 10)
    fix = "" if new_enough else "install Python 3.10 or newer; for converting 3.11"
    yield DoctorFinding("edgeinfer", True, __version__)
    yield DoctorFinding(
        "python", new_enough, f"{platform.python_version()} ({sys.executable})", fix
    )
    libc = " ".join(platform.libc_ver()).strip() or "unknown C library"
    yield DoctorFinding("system", True, f"{platform.system()} {platform.machine()}, {libc}")


def _engines() -> Iterator[DoctorFinding]:
    from edgeinfer.backends import registry
    from edgeinfer.machine.fingerprint import read_facts
    from edgeinfer.machine.installs import (
        COMPILERS,
        GPU,
        WHEELS,
        advise,
        install_line,
        this_python,
    )

    facts, python = read_facts(), this_python()
    for probe in registry.probe_all():
        what = f"engine {probe.backend}"
        kinds = dict.fromkeys(unit.kind for unit in probe.devices)
        if probe.backend == TEXTS and importlib.util.find_spec(TOKENIZERS) is None:
            fix = install_line(python, f"edgeinfer[{TEXTS}]")
            yield DoctorFinding(what, None, f"{probe.version}, no {TOKENIZERS}", fix)
        elif probe.available:
            yield DoctorFinding(what, True, f"{probe.version} on {', '.join(kinds)}")
        else:
            lacking = "not installed" in probe.reason
            absent = "not installed" if lacking else "not usable here"
            found = f"{probe.version}, not usable" if probe.version else absent
            fix = probe.reason
            if "not installed" in probe.reason and probe.backend in WHEELS:
                fix = f"{_first(probe.reason)}; {advise(probe.backend, facts, python)}"
            elif extra := _EXTRA_OF.search(probe.reason):
                fix = f"{_first(probe.reason)}; {install_line(python, extra[0])}"
            elif probe.backend in COMPILERS and facts.gpus:
                fix = f"{probe.reason}; {advise(probe.backend, facts, python)}"
            yield DoctorFinding(what, None, found, fix)
        if probe.backend == "onnxruntime" and facts.gpus and "gpu" not in kinds:
            name = facts.gpus[0].name
            fix = f"{name} is here and is not used; {advise(GPU, facts, python)}"
            yield DoctorFinding(f"{what} on the GPU", None, "this build cannot use it", fix)


def _idle_gpu() -> Iterator[DoctorFinding]:
    """A GPU that no engine sees, for want of a driver."""
    from edgeinfer.machine.board import idle_nvidia

    if idle_nvidia(Path("/")):
        fix = "install NVIDIA's driver with the system's packages, and restart"
        yield DoctorFinding("GPU", None, "an NVIDIA GPU without its driver", fix)


def _first(reason: str) -> str:
    """Without the general line to install it."""
    return reason.split("; pip install", 1)[0]


def _extras() -> Iterator[DoctorFinding]:
    from edgeinfer.installed import extras
    from edgeinfer.machine.installs import install_line, this_python

    python, known = this_python(), extras()
    for extra, modules, purpose in EXTRAS:
        if known and extra not in known:
            continue
        missing = [m for m in modules if importlib.util.find_spec(m) is None]
        if missing:
            fix = f"for {purpose}: {install_line(python, f'edgeinfer[{extra}]')}"
            yield DoctorFinding(f"extra {extra}", None, f"no {', '.join(missing)}", fix)
        else:
            yield DoctorFinding(f"extra {extra}", True, ", ".join(map(_version, modules)))


def _version(module: str) -> str:
    name = PACKAGES.get(module, module)
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def _cache() -> DoctorFinding:
    from edgeinfer.bundle.cache import ENV, cache_root, writable_folder

    try:
        folder = writable_folder()
        free = shutil.disk_usage(folder).free
    except OSError as e:
        fix = f"set {ENV} to a folder that can be written"
        return DoctorFinding("cache", False, f"{cache_root()}: {e.strerror or e}", fix)
    return DoctorFinding("cache", True, f"{folder}, {size(free)} free")


def _memory() -> DoctorFinding:
    from edgeinfer.machine.fingerprint import read_facts

    free = read_facts().free_mb
    if free is None:
        return DoctorFinding("memory", None, "unknown")
    low = free < LOW_MEMORY_MB
    fix = "conversion may run out of memory; convert on another machine" if low else ""
    return DoctorFinding("memory", not low, f"{size(free << 20)} free", fix)


def _speed() -> Iterator[DoctorFinding]:
    """What keeps this device from its full speed; nothing where nothing is known to."""
    from edgeinfer.machine.fingerprint import read_facts

    facts = read_facts()
    complaints = [*facts.power.complaints, *(c for gpu in facts.gpus for c in gpu.complaints)]
    if complaints:
        fix = "figures measured now are too slow: mind cooling and power supply first"
        yield DoctorFinding("speed", False, "; ".join(complaints), fix)


def _view(findings: list[DoctorFinding], lacking: str) -> Iterator[str | Table]:
    marks = {True: "ok", False: "!!", None: "-"}
    yield table(("", "what", "found"), [(marks[f.ok], f.what, f.found) for f in findings])
    yield ""
    # Outside the table, so that no terminal breaks a line that is meant to be copied.
    yield from together((f.what, f.fix) for f in findings if f.fix)
    yield lacking or "ready"


def _smallest() -> str:
    """Return a line that gives this device an engine, of the first that there is one for."""
    from edgeinfer.machine.fingerprint import read_facts
    from edgeinfer.machine.installs import WHEELS, advise, this_python

    facts, python = read_facts(), this_python()
    found = [advise(engine, facts, python) for engine in WHEELS if engine != CHECKER]
    return next((advice.line for advice in found if advice.line), str(found[0]))
