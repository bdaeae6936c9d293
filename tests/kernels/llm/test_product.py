"""Products and look-ups of every type of weights, against NumPy."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.tvm import library
from edgeinfer.types import Array
from tests import samples
from tests.convert.llm.test_blocks import stored

tvm = pytest.importorskip("tvm")

from edgeinfer.convert.llm.blocks import Integers, StoredTensor  # noqa: E402
from edgeinfer.convert.llm.pack import Packer, as_stored, form_of, rounded  # noqa: E402
from edgeinfer.convert.lower.tvm.machines import machine  # noqa: E402
from edgeinfer.kernels.defs.emit import KernelCpu  # noqa: E402
from edgeinfer.kernels.defs.gemv import DOTS  # noqa: E402
from edgeinfer.kernels.defs.llm.attend import attend, turn  # noqa: E402
from edgeinfer.kernels.defs.llm.cache import PAGE, Pages  # noqa: E402
from edgeinfer.kernels.defs.llm.form import dot_of  # noqa: E402
from edgeinfer.kernels.defs.llm.heads import Attend  # noqa: E402
from edgeinfer.kernels.defs.llm.product import Product, product  # noqa: E402
from edgeinfer.kernels.defs.llm.rounding import norm_round, rounded_buffers  # noqa: E402
from edgeinfer.kernels.defs.llm.rows import embed  # noqa: E402
from edgeinfer.kernels.defs.llm.steps import TOKENS  # noqa: E402

HERE = "x86-64-v3"
ROWS, COLUMNS = 16, 256
TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4", "F32", "F16", "BF16", "w4 by 64"),
)


class _File:
    """Takes what a packer writes."""

    def __init__(self) -> None:
        self.data = b""

    def tell(self) -> int:
        return len(self.data)

    def write(self, data: Any) -> None:
        self.data += bytes(data)


def weights(kind: str) -> StoredTensor | Integers:
    if kind == "w4 by 64":
        values = np.random.default_rng(3).standard_normal((ROWS, COLUMNS))
        return rounded(values.astype(np.float32), 4, 64)
    tensor = stored(kind, ROWS, COLUMNS)
    if kind == "MXFP4":
        # Exponents of any size would drown all others.
        tensor.data.reshape(ROWS, -1, 17)[..., 0] = 120 + np.arange(8) % 5
    return tensor


def packed(kind: str) -> tuple[Any, list[Array]]:
    """A matrix as kernels take it."""
    file = _File()
    packer = Packer(file, DOTS[HERE])  # type: ignore[arg-type]
    made = packer.matrix("m", [weights(kind)])
    arrays = []
    for name in made.arrays:
        about = packer.arrays[f"m.{name}"]
        count = int(np.prod(about.shape))
        flat = np.frombuffer(file.data, about.dtype, count, about.offset)
        arrays.append(flat.reshape(about.shape).copy())
    return made.form, arrays


def label(kind: str) -> str:
    return re.sub(r"\W", "_", kind)


@dataclass(frozen=True, slots=True)
class Code:
    """Compiled functions; arrays of fewer tokens than declared are filled up."""

    module: Any

    def __call__(self, name: str, *arrays: Array) -> None:
        self.module[name](*[tvm.runtime.tensor(a) if a.size == 0 else _view(a) for a in arrays])


def _view(array: Array) -> Any:
    import tvm_ffi

    return tvm_ffi.from_dlpack(array)


@pytest.fixture(scope="module")
def code(request: pytest.FixtureRequest) -> Code:
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip(f"code for {HERE} does not run here")
    where, dot = machine(HERE), DOTS[HERE]
    cpu = KernelCpu(where.lanes, where.registers)
    functions = {"norm_round": norm_round(cpu, COLUMNS, None)}
    for kind in samples.asked(request, "kind"):
        form = form_of(as_stored(weights(kind)), dot)
        for width, streams in ((1, 2), (3, 1)):
            what = Product(
                *(dot, form, ROWS, COLUMNS, width, "store", ROWS), streams=streams, ahead=256
            )
            functions[f"product_{label(kind)}_{width}"] = product(what)
        functions[f"embed_{label(kind)}"] = embed(dot, form, ROWS, COLUMNS, 2.0)
    named = {n: f.with_attr("global_symbol", n) for n, f in functions.items()}
    return Code(tvm.compile(tvm.IRModule(named), target=where.target()))


def test_vectors_are_rounded_by_blocks(code: Code) -> None:
    x, parts = _rounded(code)
    blocks = x[:3].reshape(3, -1, 32)
    scales = np.abs(blocks).max(-1) / 127
    nearest = np.rint(blocks / np.where(scales > 0, scales, 1)[..., None])
    found = parts["words"][:3].view(np.int8).reshape(nearest.shape)
    np.testing.assert_allclose(parts["scales"][:3], scales, rtol=1e-6)
    assert np.abs(found - nearest).max() <= 1
    assert (found == nearest).mean() > 0.999
    sums = found.reshape(3, -1, 2, 16).sum(-1)
    assert np.array_equal(parts["starts"][:3], sums)
    assert not found[0, 0].any()


def _rounded(code: Code) -> tuple[Array, dict[str, Array]]:
    x = np.zeros((TOKENS, COLUMNS), np.float32)
    x[:3] = np.random.default_rng(2).standard_normal((3, COLUMNS))
    x[0, :32] = 0
    parts = {n: np.zeros(shape, dtype) for n, (shape, dtype) in rounded_buffers(COLUMNS).items()}
    code("norm_round", x, *parts.values(), np.array([0, 3, 1, 0], np.int32))
    return x, parts


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", TYPES)
def test_sums_are_those_of_rounded_vectors_and_exact_weights(code: Code, kind: str) -> None:
    form, arrays = packed(kind)
    x, parts = _rounded(code)
    right = weights(kind).float32()
    if form.floats:
        given, vectors = [x], x[:3]
    else:
        given = list(parts.values())
        bytes_ = parts["words"][:3].view(np.int8).reshape(3, -1, 32)
        vectors = (bytes_ * parts["scales"][:3, :, None]).reshape(3, -1)
    expected = vectors.astype(np.float64) @ right.astype(np.float64).T
    found = []
    for width, items, tiles in ((3, ROWS // 8, 1), (1, ROWS // 8 // 2, 3)):
        y = np.zeros((TOKENS, ROWS), np.float32)
        span = np.array([0, items, tiles, 0], np.int32)
        code(f"product_{label(kind)}_{width}", *arrays, *given, y, span)
        found.append(y[:3])
    assert np.array_equal(found[0], found[1])
    size = np.abs(vectors).astype(np.float64) @ np.abs(right).astype(np.float64).T
    assert (np.abs(found[0] - expected) <= 2e-6 * size).all()


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", TYPES)
def test_rows_are_looked_up(code: Code, kind: str) -> None:
    _, arrays = packed(kind)
    tokens = np.zeros(TOKENS, np.int32)
    tokens[:4] = 3, -1, 15, 8
    x = np.full((TOKENS, COLUMNS), 7, np.float32)
    code(f"embed_{label(kind)}", *arrays, tokens, x, np.array([0, 4, 1, 0], np.int32))
    right = weights(kind).float32() * 2
    np.testing.assert_allclose(x[[0, 2, 3]], right[[3, 15, 8]], rtol=1e-5, atol=1e-6)
    assert (x[1] == 7).all()
    assert (x[4] == 7).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        *(("x86-64-v4-vnni", "vpdpbusd"), ("x86-64-v3-vnni", "vpdpbusd")),
        *(("cortex-a76", "sdot"), ("neoverse-v1", "smmla")),
    ],
)
def test_other_machines_get_their_instructions(name: str, instruction: str) -> None:
    where, dot = machine(name), dot_of(name)
    cpu = KernelCpu(where.lanes, where.registers)
    form = form_of(as_stored(weights("Q6_K")), dot)
    heads = Attend(Pages(2, 32, "uint8"), 4, 0.2, window=8, rotated=32, epsilon=1e-6)
    functions = {
        "product": product(Product(dot, form, 32, COLUMNS, 2, "silu", 16, streams=4, ahead=256)),
        "attend": attend(cpu, dot, heads, heads.tiles(cpu)[0], fused=False),
        "turn": turn(cpu, heads),
    }
    named = {n: f.with_attr("global_symbol", n) for n, f in functions.items()}
    compiled = tvm.compile(tvm.IRModule(named), target=where.target())
    code = [m.inspect_source("asm") for m in (compiled.mod, *compiled.mod.imports) if _has(m)]
    assert any(instruction in text for text in code)
    assert PAGE == 16


def _has(module: Any) -> bool:
    return str(module.kind) == "llvm"


@pytest.mark.parametrize(("kind", "factors"), [("Q4_0", 1), ("Q4_1", 2), ("w4 by 64", 1)])
def test_scales_are_asked_for_with_the_weights_of_one_token(kind: str, factors: int) -> None:
    found = []
    for width in (1, 2):
        form = form_of(as_stored(weights(kind)), DOTS[HERE])
        what = Product(DOTS[HERE], form, ROWS, COLUMNS, width, "store", ROWS, ahead=256)
        text = product(what).script()
        found.append(len(re.findall(r"llvm\.prefetch", text)))
    assert found[0] - found[1] == factors
