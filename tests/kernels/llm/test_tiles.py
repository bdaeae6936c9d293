"""Products by AMX tiles give the bits of those by AVX2, on tiles in C where there are none."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.tvm import library
from edgeinfer.types import Array

tvm = pytest.importorskip("tvm")

from tvm import tirx  # noqa: E402
from tvm.script.ir_builder import tirx as T  # noqa: E402, N812

from edgeinfer.backends.llm import team  # noqa: E402
from edgeinfer.convert.llm.pack import Packer  # noqa: E402
from edgeinfer.convert.lower.tvm.machines import machine  # noqa: E402
from edgeinfer.kernels.defs.gemv import DOTS  # noqa: E402
from edgeinfer.kernels.defs.llm import tiles  # noqa: E402
from edgeinfer.kernels.defs.llm.product import Product, buffers_of, product  # noqa: E402
from edgeinfer.kernels.defs.llm.steps import TOKENS  # noqa: E402
from tests.kernels.llm import test_product as usual  # noqa: E402

COUNT, ROWS, COLUMNS = 40, 64, 256
PLAIN, TILED = "x86-64-v3", "x86-64-v4-amx"
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_NL", "w4 by 64")

Run = Callable[[str, list[Array]], None]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tiles in C, which this process's code finds."""
    if platform.machine() != "x86_64" or "avx2" not in library.cpu_features():
        pytest.skip("x86-64 code does not run here")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    made = tmp_path_factory.mktemp("tiles") / "tiles.so"
    source = Path(__file__).with_name("tiles.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
    ctypes.CDLL(str(made), ctypes.RTLD_GLOBAL)


def _in_c(name: str, *arguments: Any) -> None:
    T.evaluate(tirx.call_extern("int32", f"emulated_{name}", *arguments))


def _arrays(kind: str, name: str, what: Product) -> list[Array]:
    """What a product takes, of the same numbers for each machine."""
    rng = np.random.default_rng(5)
    file = usual._File()
    packer = Packer(file, DOTS[name])  # type: ignore[arg-type]
    made = packer.matrix("m", [_weights(kind)])
    assert made.form == what.form
    given: dict[str, Array] = {}
    for part, known in zip(
        made.arrays, what.form.buffers(ROWS, COLUMNS, what.dot.rows), strict=True
    ):
        about = packer.arrays[f"m.{part}"]
        count = int(np.prod(about.shape))
        flat = np.frombuffer(file.data, about.dtype, count, about.offset)
        given[known] = flat.reshape(about.shape).copy()
    words = rng.integers(-127, 128, (COUNT, COLUMNS // 32, 8, 4), dtype=np.int8)
    sums = words.reshape(COUNT, -1, 2, 16).sum(-1, dtype=np.int32)
    scales = rng.random((COUNT, COLUMNS // 32), np.float32)
    given |= {
        "words": words.view(np.int32)[..., 0],
        "scales": scales,
        "starts": sums,
        "sums": sums.astype(np.float32) * scales[..., None],
        "bias": rng.standard_normal(ROWS).astype(np.float32),
        "y": rng.standard_normal((COUNT, what.target)).astype(np.float32),
    }
    runs = what.items
    given["span"] = np.array([0, runs, -(-COUNT // what.width), 0], np.int32)
    filled = []
    for key, (shape, _) in buffers_of(what).items():
        value = given[key]
        if shape[0] == TOKENS:
            value = np.concatenate(
                [value, np.zeros((TOKENS - len(value), *value.shape[1:]), value.dtype)]
            )
        filled.append(np.ascontiguousarray(value))
    return filled


def _weights(kind: str) -> Any:
    rows, usual.ROWS = usual.ROWS, ROWS
    try:
        return usual.weights(kind)
    finally:
        usual.ROWS = rows


def _form(kind: str, name: str) -> Any:
    from edgeinfer.convert.llm.pack import as_stored, form_of

    return form_of(as_stored(_weights(kind)), DOTS[name])


def _answers(name: str, where: Any, width: int, asked: list[tuple[str, str, bool]]) -> list[Array]:
    made = []
    for at, (kind, epilogue, bias) in enumerate(asked):
        gated = epilogue == "silu"
        target = ROWS // 2 if gated else ROWS
        form = _form(kind, name)
        sizes = (DOTS[name], form, ROWS, COLUMNS, width, epilogue, target)
        made.append((kind, f"p{at}", Product(*sizes, bias=bias, ahead=1024)))  # type: ignore[arg-type]
    functions = {n: product(w).with_attr("global_symbol", n) for _, n, w in made}
    code = usual.Code(tvm.compile(tvm.IRModule(functions), target=where.target()))
    found = []
    for kind, symbol, what in made:
        arrays = _arrays(kind, name, what)
        code(symbol, *arrays)
        found.append(arrays[-2][:COUNT])
    return found


USUAL = ("Q4_0", "Q6_K", "w4 by 64")
SOME = [
    *((kind, "store", False) for kind in USUAL),
    ("Q4_0", "add", True),
    ("Q4_1", "silu", False),
]
OTHERS = [(kind, "store", False) for kind in TYPES if kind not in USUAL]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "asked", [SOME, pytest.param(OTHERS, marks=pytest.mark.sweep)], ids=["some", "others"]
)
def test_tiles_give_the_same_bits(
    asked: list[tuple[str, str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _answers(PLAIN, machine(PLAIN), 6, asked)
    monkeypatch.setattr(tiles, "_call", _in_c)
    # Vectors of sixteen are two of eight there.
    found = _answers(TILED, replace(machine(TILED), cpu="x86-64-v3", attributes=()), 16, asked)
    for what, one, other in zip(asked, right, found, strict=True):
        assert np.array_equal(one, other), what


@pytest.mark.skipif(
    not set(machine(TILED).features) <= library.cpu_features(), reason="this CPU has no AMX tiles"
)
def test_tiles_of_this_processor_give_the_same_bits() -> None:
    team.ask_for_tiles()
    asked = SOME + OTHERS
    right = _answers(PLAIN, machine(PLAIN), 6, asked)
    found = _answers(TILED, machine(TILED), 16, asked)
    for what, one, other in zip(asked, right, found, strict=True):
        assert np.array_equal(one, other), what
