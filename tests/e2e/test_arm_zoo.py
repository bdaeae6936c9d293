"""Every float model of the zoo as machine code for the Raspberry Pis, run under emulation.

Needs what ``test_arm.py`` needs. Hours on two cores: ``make test-arm-zoo JOBS=8`` runs models at
once, keeps what was found in build/, and goes on there. Speed under emulation says nothing.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("tvm", reason="apache-tvm is not installed")

from edgeinfer.backends.process.emulator import emulator
from tests.zoo import emulated, fixed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.mark.parametrize("name", fixed.names())
def test_numbers_on_both_cpus(name: str) -> None:
    emulator("aarch64", "cortex-a76")
    rows = emulated.judge(name)
    wanted = "refused" if name in fixed.REFUSED else "right"
    assert [r.outcome for r in rows] == [wanted] * len(emulated.TARGETS), rows
    assert all(r.vectors for r in rows) or name in fixed.REFUSED


def test_the_heavy_ones_are_in_the_zoo() -> None:
    assert set(emulated.HEAVY) <= set(fixed.names())
    names = fixed.names()
    assert {*fixed.ASSETS} <= {*names, *(n.rpartition(".")[0] for n in names)}
