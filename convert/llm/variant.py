"""A language model's files for one machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeinfer.bundle.scratch import Scratch
from edgeinfer.convert.llm import compiled
from edgeinfer.convert.llm.adapters import Adapter
from edgeinfer.convert.llm.pack import Packer
from edgeinfer.convert.llm.plan import CACHES, Kernel, Source, TapePlan, plan, problems
from edgeinfer.convert.llm.reading import Reading, fastest
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.errors import UsageError
from edgeinfer.kernels.defs.llm.form import dot_of
from edgeinfer.llm import LlmConfig, config, tape


def write(
    description: LlmConfig,
    tensors: Mapping[str, Source],
    machine: Machine,
    folder: Path,
    *,
    reading: Reading | None = None,
    caches: tuple[str, ...] = CACHES,
    measure: bool = False,
    adapters: Mapping[str, Adapter] | None = None,
) -> tuple[str, ...]:
    """Write description, weights, code and tape.

    Args:
        description: Description of the model.
        tensors: its weights.
        machine: that the files are for.
        folder: that takes them.
        reading: how products read weights; None for the machine's.
        caches: types of caches that there is to be code for.
        measure: the machine is this one, and how weights are read fastest is measured.
        adapters: low-rank adapters, by name.

    Returns:
        What the user should know.

    Raises:
        UsageError: no kernels are made for the model or the machine.
        NotAvailableError: TVM or the compiler driver is not installed, or fails.
    """
    if found := list(problems(description, machine)):
        raise UsageError("; ".join(found))
    weights = folder / tape.WEIGHTS_NAME
    with weights.open("wb") as file:
        packer = Packer(file, dot_of(machine.name))
        how: Any = {"reading": reading, "caches": caches, "adapters": adapters}
        made = plan(description, tensors, machine, packer, **how)
        if measure:
            # What is not on storage yet cannot be had in large pages.
            file.flush()
            os.fsync(file.fileno())
    more: tuple[str, ...] = ()
    if measure:
        made.read_by(_fastest(made, weights))
        more = (f"read fastest here, streams x bytes ahead (kernels): {made.reading}",)
    count = _finish(made, folder)
    size = weights.stat().st_size / 1e6
    return (
        f"{len(made.kernels)} kernels for {machine.name}, {count} of them compiled now",
        f"{len(made.phases)} phases a step over {size:.0f} MB of weights",
        *more,
    )


def _fastest(made: TapePlan, weights: Path) -> Reading:
    with Scratch(within=weights.parent) as scratch:

        def write(choices: Sequence[Reading]) -> list[Path]:
            wanted: list[Kernel] = []
            for choice in choices:
                made.read_by(choice)
                wanted += made.kernels.values()
            # All at once: each compiler takes seconds to start.
            compiled.compile_kernels(wanted, made.machine)
            return [attempt(str(at), choice) for at, choice in enumerate(choices)]

        def attempt(name: str, choice: Reading) -> Path:
            made.read_by(choice)
            folder = scratch / name
            folder.mkdir()
            (folder / tape.WEIGHTS_NAME).symlink_to(weights.resolve())
            _finish(made, folder)
            return folder

        kernels = made.kernels.values()
        products = [k.name for k in kernels if k.maker == "product" and not k.values[0].more]
        return fastest(made.reading, products, str(made.machine), write)


def _finish(made: TapePlan, folder: Path) -> int:
    """Write all but the weights; returns how many kernels had to be compiled."""
    library = folder / tape.LIBRARY_NAME
    signatures, count = compiled.library(list(made.kernels.values()), made.machine, library)
    code = hashlib.sha256(library.read_bytes()).hexdigest()
    whole = tape.Tape(
        version=tape.VERSION,
        machine=made.machine.name,
        side=made.packer.dot.rows,
        caches=made.caches,
        columns=tuple(sorted(made.columns)),
        weights=made.packer.arrays,
        kernels=signatures,
        phases=tuple(made.phases),
        digest=hashlib.sha256(f"{made.packer.digest} {code}".encode()).hexdigest()[:32],
        adapters=made.kept,
    )
    (folder / tape.FILE_NAME).write_text(whole.to_json(), encoding="utf-8")
    (folder / config.FILE_NAME).write_text(made.config.to_json(), encoding="utf-8")
    return count
