"""The library of functions around models, made in a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tvm

from edgeinfer.backends.trial import answer
from edgeinfer.convert.lower.tvm import hosted
from edgeinfer.convert.lower.tvm.machines import Machine, machine
from edgeinfer.kernels.defs import boxes, resize
from edgeinfer.kernels.defs.emit import Cpu

_HOST = Path(__file__).with_name("functions.c")


def build(machine: Machine, driver: str, path: Path, *, pairs: bool | None = None) -> None:
    """Compile the functions for an instruction set, and link them.

    Args:
        machine: the instruction set.
        driver: the compiler driver that links.
        path: of the library.
        pairs: see ``resize.functions``; None for what the instruction set has.

    Raises:
        NotAvailableError: the compiler driver fails.
    """
    cpu = Cpu(machine.lanes, machine.registers)
    has_pairs = machine.arch == "x86_64" if pairs is None else pairs
    functions = resize.functions(cpu, pairs=has_pairs) | boxes.functions()
    named = {n: f.with_attr("global_symbol", n) for n, f in functions.items()}
    compiled = tvm.compile(tvm.IRModule(named), target=machine.target())
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "code.o")
        compiled.mod.write_to_file(str(code), "o")
        hosted.link(driver, [str(_HOST), str(code)], path, "functions", machine, parallel=False)


def _attempt(asked: tuple[str, str, str]) -> None:
    name, driver, path = asked
    build(machine(name), driver, Path(path))


if __name__ == "__main__":
    answer(_attempt)
