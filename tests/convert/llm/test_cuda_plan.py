"""Decoders laid out for NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")

from edgeinfer.convert.llm import cuda_code, cuda_variant
from edgeinfer.convert.llm.cuda_pack import CudaPacker, nibbles, tiles
from edgeinfer.convert.llm.cuda_plan import plan_cuda
from edgeinfer.convert.llm.pack import rounded
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.llm import Experts
from edgeinfer.llm.tape import Attention, Products, Routed, Rows
from tests.backends.llm.small import CONFIG, weights


def test_what_there_are_no_kernels_for_is_listed(tmp_path: Path) -> None:
    experts = Experts(1025, 2, 100, False)
    config = replace(CONFIG, experts=experts, head_dim=24, post_norms=True)
    with pytest.raises(UsageError) as error:
        cuda_variant.write(config, {}, ["sm_87"], tmp_path)
    said = str(error.value)
    for part in ("1025 experts", "result is normed", "head_dim is 24", "ffn is 100"):
        assert part in said
    assert not list(tmp_path.iterdir())


def test_weights_lie_as_the_matrix_unit_takes_them() -> None:
    """Fragments of m16n8k16 by the PTX ISA: thread 4 g + t has rows g and g + 8."""
    values = np.random.default_rng(0).integers(0, 16, (32, 64), dtype=np.uint8)
    found = tiles(values)
    for thread in range(32):
        g, t = divmod(thread, 4)
        for product in range(2):
            # Any order of columns is one, as long as tokens have the same: here four neighbours.
            at = 32 + 16 * product + 4 * t
            parts = [values[16 + g + 8 * (i % 2), at + i // 2 * 2 :][:2] for i in range(4)]
            wanted = np.concatenate(parts)
            assert found[1, 1, thread, 8 * product :][:8].tolist() == wanted.tolist()
    words = nibbles(found)
    for i in range(4):
        assert np.array_equal(words[..., 1] >> 4 * i & 15, found[..., 8 + 2 * i])
        assert np.array_equal(words[..., 1] >> 4 * i + 16 & 15, found[..., 9 + 2 * i])


def test_who_writes_a_row_knows_the_next_norm(tmp_path: Path) -> None:
    with (tmp_path / "weights.bin").open("wb") as file:
        made = plan_cuda(CONFIG, weights(CONFIG), CudaPacker(file))
    told = []
    for phase in made.phases:
        assert not isinstance(phase, Routed)
        if isinstance(phase, Attention):
            continue
        calls = [phase.call] if isinstance(phase, Rows) else phase.calls.values()
        for call in calls:
            assert "next" not in call.arguments
        call = next(iter(calls))
        told += [a for a, b in pairwise(call.arguments) if b == "xs" and a.startswith("w:")]
    norms = [f"blk.{layer}.{name}" for layer in range(2) for name in ("attn_norm", "ffn_norm")]
    assert told == [f"w:{name}" for name in (*norms, "output_norm")]


def test_columns_are_cut_by_a_matrix_alone(tmp_path: Path) -> None:
    """So that the same sums are made for any number of tokens."""
    config = replace(CONFIG, ffn=4096)
    tensors = {
        name: rounded(t.float32(), 4, 32) if len(t.shape) > 1 else t
        for name, t in weights(config).items()
    }
    with (tmp_path / "weights.bin").open("wb") as file:
        made = plan_cuda(config, tensors, CudaPacker(file))
    down = [p for p in made.phases if isinstance(p, Products)][3]
    names = {call.kernel for call in down.calls.values()}
    assert names == {f"product_k4s1_add_f4_{cut}" for cut in ("1x1", "4x1", "4x4")}
    assert {made.threads[name] for name in names} == {256, 1024}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_87", "sm_90", "sm_110"])
def test_kernels_compile_for_an_architecture(arch: str) -> None:
    loads = cuda_code.Loads(4, "float16")
    parts = [cuda_code.embed(loads), cuda_code.turn("uint8")]
    parts += [cuda_code.attend(cache, False) for cache in ("float16", "uint8")]
    parts += [cuda_code.product(loads, "add", eights, 2, 2)[:2] for eights in (1, 4)]
    parts += [cuda_code.product(loads, "silu", 4, 1, 2, is_routed=True)[:2]]
    try:
        made = cuda_code.compiled(cuda_code.text([t for _, t in parts], 64, 4), arch)
    except NotAvailableError as e:
        if "pip install" in str(e):
            pytest.skip(str(e))
        raise
    assert made.startswith(b"\x7fELF")
    assert all(name.encode() in made for name, _ in parts)


def test_what_the_compiler_says_is_told() -> None:
    with pytest.raises(NotAvailableError, match=r"pip install|error: expected a declaration"):
        cuda_code.compiled("this is no code", "sm_90")
