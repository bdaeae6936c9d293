"""A language model's files for one machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from edgeinfer.convert.llm import compiled
from edgeinfer.convert.llm.pack import Packer
from edgeinfer.convert.llm.plan import CACHES, Reading, Source, plan
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.kernels.defs.gemv import DOTS
from edgeinfer.llm import LlmConfig, config, tape


def write(
    description: LlmConfig,
    tensors: Mapping[str, Source],
    machine: Machine,
    folder: Path,
    *,
    reading: Reading | None = None,
    caches: tuple[str, ...] = CACHES,
) -> tuple[str, ...]:
    """Write description, weights, code and tape.

    Args:
        description: of the model.
        tensors: its weights.
        machine: that the files are for.
        folder: that takes them.
        reading: how products read weights; None for the machine's.
        caches: types of caches that there is to be code for.

    Returns:
        What the user should know.

    Raises:
        UsageError: no kernels are made for the model or the machine.
        NotAvailableError: TVM or the compiler driver is not installed, or fails.
    """
    weights = folder / tape.WEIGHTS_NAME
    with weights.open("wb") as file:
        packer = Packer(file, DOTS[machine.name])
        made = plan(description, tensors, machine, packer, reading=reading, caches=caches)
    library = folder / tape.LIBRARY_NAME
    signatures, count = compiled.library(list(made.kernels.values()), machine, library)
    code = hashlib.sha256(library.read_bytes()).hexdigest()
    whole = tape.Tape(
        version=tape.VERSION,
        machine=machine.name,
        side=packer.dot.rows,
        caches=caches,
        columns=tuple(sorted(made.columns)),
        weights=packer.arrays,
        kernels=signatures,
        phases=tuple(made.phases),
        digest=hashlib.sha256(f"{packer.digest} {code}".encode()).hexdigest()[:32],
    )
    (folder / tape.FILE_NAME).write_text(whole.to_json(), encoding="utf-8")
    (folder / config.FILE_NAME).write_text(description.to_json(), encoding="utf-8")
    size = weights.stat().st_size / 1e6
    return (
        f"{len(made.kernels)} kernels for {machine.name}, {count} of them compiled now",
        f"{len(made.phases)} phases a step over {size:.0f} MB of weights",
    )
