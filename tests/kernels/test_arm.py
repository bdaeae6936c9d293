"""Products of 4-bit and 8-bit weights as code for Arm: what is in it, and its numbers, emulated.

The numbers need what ``tests/e2e/test_arm.py`` needs. Times under emulation say nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.products import Product
from tests.kernels.run import Array, tvm

from edgeinfer.backends.process.emulator import emulator  # isort: skip
from edgeinfer.convert.lower.tvm.machines import machine  # isort: skip
from edgeinfer.kernels.defs import gemv  # isort: skip

ARM = {"cortex-a76": "sdot", "neoverse-v1": "smmla"}
"""Machines, and the instruction that their products are made of."""

RUN = """
import sys
from pathlib import Path
import numpy as np
from edgeinfer.backends.engines import import_tvm_runtime
from tests.kernels.placed import misaligned
runtime = import_tvm_runtime()
folder = Path(sys.argv[1])
library = runtime.load_module(str(folder / "kernels.so"))
given = np.load(folder / "given.npz")
made = {}
for i in range(int(sys.argv[2])):
    arrays = [misaligned(given[f"{i}_{j}"]) for j in range(5) if f"{i}_{j}" in given]
    library[f"kernel{i}"](*(runtime.from_dlpack(a) for a in arrays))
    made[str(i)] = arrays[-1]
np.savez(folder / "made.npz", **made)
"""


def _cases() -> list[Product]:
    rng = np.random.default_rng(1)
    found = []
    for bits in (4, 8):
        for block in (32, 64, 128):
            shape = (int(rng.integers(1, 70)), int(rng.integers(1, 300)))
            found += [Product(bits, shape, block, v) for v in (1, int(rng.integers(2, 11)))]
        found += [Product(bits, (16, 128), 32, 8), Product(bits, (3, 5), 32, 1)]
        found.append(Product(bits, (64, 256), 128, 2))
        fine = gemv.ProductForm(zeros=True, scales="float32", fine=True)
        found += [Product(bits, (21, 150), 64, v, fine) for v in (1, 5)]
        found.append(Product(bits, (21, 150), 64, 3, gemv.ProductForm(zeros=True, step=64)))
    return found


def _compiled(cases: list[Product], name: str) -> Any:
    dot = gemv.DOTS[name]
    functions = {
        f"kernel{i}": case.kernel(dot).with_attr("global_symbol", f"kernel{i}")
        for i, case in enumerate(cases)
    }
    return tvm.compile(tvm.IRModule(functions), target=machine(name).target())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ARM)
def test_products_are_made_of_the_cpus_own_instruction(name: str, bits: int) -> None:
    made = _compiled([Product(bits, (8, 64), 64, 2)], name)
    words = made.mod.inspect_source("s").split()
    # A tile of two vectors and eight rows: in one run of rows, two blocks of eight words each.
    assert words.count(ARM[name]) >= 16
    assert not {*ARM.values()} - {ARM[name]} & {*words}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ARM)
def test_numbers_under_emulation(name: str, tmp_path: Path) -> None:
    from tvm.support import cc

    cases, dot, where = _cases(), gemv.DOTS[name], machine(name)
    _compiled(cases, name).export_library(
        str(tmp_path / "kernels.so"), fcompile=cc.cross_compiler(where.linker)
    )
    given: dict[str, Array] = {}
    for i, case in enumerate(cases):
        operands = [*case.operands(dot), np.zeros((case.vectors, case.shape[0]), np.float32)]
        given |= {f"{i}_{j}": a for j, a in enumerate(operands)}
    np.savez(tmp_path / "given.npz", **given)  # type: ignore[arg-type]
    arm = emulator(where.arch, where.cpu)
    here = Path(__file__).parents[2]
    paths = {"PYTHONPATH": f"{arm.environment['PYTHONPATH']}:{here}"}
    subprocess.run(
        [*arm.command, "-c", RUN, str(tmp_path), str(len(cases))],
        env={**arm.environment, **paths},
        check=True,
    )
    made = np.load(tmp_path / "made.npz")
    assert len(made.files) == len(cases)
    for i, case in enumerate(cases):
        want = case.expected()
        error = float(np.abs(made[str(i)] - want).max())
        # Of a vector with 16 bits, 1/64000 of its largest element is what may be missing.
        assert error <= (2e-5 if case.form.fine else 1e-5) * max(1.0, float(np.abs(want).max())), (
            case,
            error,
        )
