"""The library of functions around models, made in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm

from edgeinfer.backends.process.trial import answer
from edgeinfer.convert.lower.tvm import hosted
from edgeinfer.convert.lower.tvm.machines import Machine, machine
from edgeinfer.kernels.defs import boxes, resize, spectrum
from edgeinfer.kernels.defs.emit import KernelCpu
from edgeinfer.media.spectrogram import function_name
from edgeinfer.types import SpectrogramInput

_HOST = Path(__file__).with_name("functions.c")


def build(
    machine: Machine,
    driver: str,
    path: Path,
    *,
    pairs: bool | None = None,
    pictures: bool = True,
    spectrograms: Sequence[SpectrogramInput] = (),
) -> None:
    """Compile the functions for an instruction set, and link them.

    Args:
        machine: the instruction set.
        driver: the compiler driver that links.
        path: Path of the library.
        pairs: see ``resize.functions``; None for what the instruction set has.
        pictures: it has the functions for images and boxes.
        spectrograms: records that it has a function for each of.

    Raises:
        NotAvailableError: the compiler driver fails.
    """
    cpu = KernelCpu(machine.lanes, machine.registers)
    has_pairs = machine.arch == "x86_64" if pairs is None else pairs
    functions = resize.functions(cpu, pairs=has_pairs) | boxes.functions() if pictures else {}
    functions |= {function_name(record): _spectrogram(cpu, record) for record in spectrograms}
    named = {n: f.with_attr("global_symbol", n) for n, f in functions.items()}
    compiled = tvm.compile(tvm.IRModule(named), target=machine.target())
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "code.o")
        compiled.mod.write_to_file(str(code), "o")
        hosted.link(driver, [str(_HOST), str(code)], path, "functions", machine, parallel=False)


def _spectrogram(cpu: KernelCpu, record: SpectrogramInput) -> Any:
    mel = spectrum.Mel(
        *(record.fft, record.hop, record.mels),
        power=int(record.power),
        log=record.log,
        floor=record.floor,
        time_first=record.time_first,
        parallel=False,
        wide=True,
    )
    # Its vectors are of float64.
    return spectrum.mel_spectrogram(KernelCpu(max(cpu.lanes // 2, 2), cpu.registers), mel)


def _attempt(asked: tuple[str, str, str, bool, tuple[SpectrogramInput, ...]]) -> None:
    name, driver, path, pictures, spectrograms = asked
    build(machine(name), driver, Path(path), pictures=pictures, spectrograms=spectrograms)


if __name__ == "__main__":
    answer(_attempt, confined=False)
