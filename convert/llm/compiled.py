"""Kernels compiled once for a machine and kept; a library linked of those that a tape needs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgeinfer.backends.engines import import_tvm
from edgeinfer.backends.process.child import Child, ChildEndedError
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.bundle.kept import is_whole, keep
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.convert.llm.plan import Kernel
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.errors import NotAvailableError
from edgeinfer.llm.tape import Argument
from edgeinfer.machine.cgroup import available_cpus

_FOLDER = "llm-kernels"
_MODULE = "edgeinfer.convert.llm.compiled"
_TIMEOUT_S = 1800
_SUFFIXES = (".json", ".o")
"""Of a kernel's arguments and its object."""
_DRIVER = [str(Path(__file__).with_name(name)) for name in ("team.c", "batch.c", "adapters.c")]
_PROCESSES = 4
"""Compilers at once, at most: each takes some 300 MB."""

_CONFIG = {"tirx.disable_assert": True}
"""Arrays are described by a kernel's own signature. Code that compares them is 4 to 8 KB a kernel,
which the weights of a layer push out of the caches before the next one calls it."""

Signatures = dict[str, tuple[Argument, ...]]


def library(kernels: Sequence[Kernel], machine: Machine, path: Path) -> tuple[Signatures, int]:
    """Link the kernels and the team that runs them into one library.

    Args:
        kernels: that it has.
        machine: that they are for.
        path: Path of the library.

    Returns:
        Arguments of each kernel, and how many of them had to be compiled.

    Raises:
        NotAvailableError: TVM or the compiler driver is not installed, or fails.
    """
    from edgeinfer.convert.lower.tvm import hosted

    driver = shutil.which(machine.linker)
    if driver is None:
        package = "gcc" if machine.linker == "gcc" else "gcc-aarch64-linux-gnu"
        raise NotAvailableError(f"it needs {machine.linker}: apt-get install {package}")
    objects, count = compile_kernels(kernels, machine)
    parts = ["-pthread", *_DRIVER, *map(str, objects)]
    hosted.link(driver, parts, path, "llm", machine, parallel=True)
    named = zip(kernels, objects, strict=True)
    return {kernel.name: _signature(place) for kernel, place in named}, count


SHARED = ("emit", "math", "fold", "rows", "gemv")
"""Modules of ``kernels.defs`` that kernels of language models are written with."""


def compile_kernels(kernels: Sequence[Kernel], machine: Machine) -> tuple[list[Path], int]:
    """Return the object file of each kernel, and how many had to be compiled.

    Raises:
        NotAvailableError: TVM is not installed, or fails.
    """
    folder = writable_folder(_FOLDER)
    base = _sources(machine)
    objects = [folder / f"{_key(base, kernel)}.o" for kernel in kernels]
    named = zip(objects, kernels, strict=True)
    lacking = {place.stem: kernel for place, kernel in named if not _is_whole(place)}
    if lacking:
        _compile(lacking, machine, folder)
    return objects, len(lacking)


def _is_whole(place: Path) -> bool:
    return all(is_whole(place.with_suffix(suffix)) for suffix in _SUFFIXES)


def _signature(place: Path) -> tuple[Argument, ...]:
    data = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    return tuple(Argument(n, d, tuple(s)) for n, d, s in data)


def _sources(machine: Machine) -> str:
    """Return a digest of all sources that kernels of a machine are compiled from."""
    from edgeinfer.kernels import defs

    known = hashlib.sha256(f"{machine} {version('apache-tvm')} {_CONFIG}".encode())
    for folder in defs.__path__:
        shared = (Path(folder, f"{name}.py") for name in SHARED)
        for place in (*sorted(Path(folder, "llm").glob("*.py")), *shared):
            known.update(place.read_bytes())
    return known.hexdigest()


def _key(base: str, kernel: Kernel) -> str:
    text = f"{base} {kernel.name} {kernel.maker} {kernel.values}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _compile(kernels: Mapping[str, Kernel], machine: Machine, folder: Path) -> None:
    """Compile in processes of their own: the compiler takes memory, and several use all cores."""
    if importlib.util.find_spec("tvm") is None:
        raise NotAvailableError("it needs TVM: pip install 'edgeinfer[tvm]'")
    asked = list(kernels.items())
    count = max(1, min(_PROCESSES, len(asked) // 4, available_cpus()))
    children: list[Child] = []
    with Scratch(within=folder) as scratch:
        try:
            for i in range(count):
                child = Child(_MODULE, keep_errors=True)
                children.append(child)
                child.send((machine.name, str(scratch), asked[i::count]))
            for child in children:
                if fault := child.receive(_TIMEOUT_S, form=str):
                    raise NotAvailableError(f"a kernel was not compiled: {fault}")
        except ChildEndedError as e:
            raise NotAvailableError(f"the compiler's process ended: {e.how}") from e
        except TimeoutError as e:
            raise NotAvailableError(f"no end of compiling after {_TIMEOUT_S} s") from e
        finally:
            for child in children:
                child.kill()
        for stem in kernels:
            for suffix in _SUFFIXES:
                keep(scratch / f"{stem}{suffix}", folder / f"{stem}{suffix}")


def makers(machine: Machine) -> dict[str, Callable[..., Any]]:
    """Functions that write kernels, by name."""
    from edgeinfer.kernels.defs.emit import KernelCpu
    from edgeinfer.kernels.defs.llm import attend, experts, product, rounding, rows
    from edgeinfer.kernels.defs.llm.form import dot_of
    from edgeinfer.kernels.defs.llm.heads import TILES

    cpu, dot = KernelCpu(machine.lanes, machine.registers), dot_of(machine.name)
    return {
        "product": product.product,
        "norm_round": lambda *v: rounding.norm_round(cpu, *v),
        "embed": rows.embed,
        "gather": lambda *v: rows.gather(cpu, *v),
        "norm": lambda *v: rows.norm(cpu, *v),
        "norm_add": lambda *v: rows.norm_add(cpu, *v),
        "route": experts.route,
        "expert_gate": experts.expert_gate,
        "expert_down": experts.expert_down,
        "list_experts": experts.list_experts,
        "pair_rows": lambda *v: experts.pair_rows(cpu, *v),
        "listed_gate": experts.listed_gate,
        "listed_down": experts.listed_down,
        "sum_experts": lambda *v: experts.sum_experts(cpu, *v),
        "turn": lambda what: attend.turn(cpu, what),
        "fused": lambda what: attend.attend(cpu, dot, what, 1, fused=True),
        **{
            f"attend{n}": lambda what, n=n: attend.attend(cpu, dot, what, n, fused=False)
            for n in TILES
        },
    }


def _write(kernels: Iterable[tuple[str, Kernel]], machine: Machine, folder: Path) -> None:
    tvm = import_tvm()
    known = makers(machine)
    for stem, kernel in kernels:
        made = known[kernel.maker](*kernel.values)
        arguments = []
        for parameter in made.params:
            shape = [int(n) for n in parameter.shape]
            arguments.append([parameter.name, str(parameter.dtype), shape])
        module = tvm.IRModule({kernel.name: made.with_attr("global_symbol", kernel.name)})
        with tvm.transform.PassContext(config=_CONFIG):
            compiled = tvm.compile(module, target=machine.target())
        compiled.mod.write_to_file(str(folder / f"{stem}.o"), "o")
        (folder / f"{stem}.json").write_text(json.dumps(arguments), encoding="utf-8")


def _attempt(asked: tuple[str, str, list[tuple[str, Kernel]]]) -> None:
    from edgeinfer.convert.lower.tvm.machines import machine

    name, folder, kernels = asked
    _write(kernels, machine(name), Path(folder))


if __name__ == "__main__":
    from edgeinfer.backends.process.trial import answer

    answer(_attempt, confined=False)
