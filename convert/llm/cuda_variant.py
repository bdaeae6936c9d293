"""A language model's files for NVIDIA GPUs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeinfer.convert.llm import cuda_code
from edgeinfer.convert.llm.adapters import Adapter
from edgeinfer.convert.llm.cuda_pack import CudaPacker
from edgeinfer.convert.llm.cuda_plan import cuda_problems, plan_cuda
from edgeinfer.convert.llm.plan import Source
from edgeinfer.errors import UsageError
from edgeinfer.llm import LlmConfig, config, tape
from edgeinfer.llm.gpu import code_name, share_of


def write(
    description: LlmConfig,
    tensors: Mapping[str, Source],
    architectures: Sequence[str],
    folder: Path,
    *,
    adapters: Mapping[str, Adapter] | None = None,
) -> tuple[str, ...]:
    """Write description, weights, code and tape.

    Args:
        description: Description of the model.
        tensors: its weights.
        architectures: Architectures of GPUs, such as ``sm_87``.
        folder: that takes them.
        adapters: low-rank adapters, by name.

    Returns:
        What the user should know.

    Raises:
        UsageError: no kernels are made for the model.
        NotAvailableError: CUDA's compiler is not installed, or fails.
    """
    if found := list(cuda_problems(description)):
        raise UsageError("; ".join(found))
    weights = folder / tape.WEIGHTS_NAME
    with weights.open("wb") as file:
        packer = CudaPacker(file)
        made = plan_cuda(description, tensors, packer, adapters)
    text = cuda_code.text(made.entries.values(), description.head_dim, share_of(description))
    digest = hashlib.sha256(f"{packer.digest} {text}".encode())
    for architecture in architectures:
        code = cuda_code.compiled(text, architecture)
        digest.update(code)
        (folder / code_name(architecture)).write_bytes(code)
    threads = made.threads.items()
    calls: dict[str, tuple[tape.Argument, ...]] = {
        n: (tape.Argument("threads", "int32", (t,)),) for n, t in threads
    }
    whole = tape.Tape(
        version=tape.VERSION,
        machine=" ".join(architectures),
        side=packer.dot.rows,
        caches=made.caches,
        columns=(),
        weights=packer.arrays,
        kernels=calls,
        phases=tuple(made.phases),
        digest=digest.hexdigest()[:32],
        adapters=made.kept,
    )
    (folder / tape.FILE_NAME).write_text(whole.to_json(), encoding="utf-8")
    (folder / config.FILE_NAME).write_text(description.to_json(), encoding="utf-8")
    size = weights.stat().st_size / 1e6
    return (
        f"{len(made.entries)} kernels and those of every model for {', '.join(architectures)}",
        f"{len(made.phases)} phases a step over {size:.0f} MB of weights",
    )
