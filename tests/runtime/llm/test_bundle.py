"""Which variant of a bundle is taken."""

from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.bundle.manifest import EngineRequirement, FileRecord, Variant
from edgeinfer.errors import NotAvailableError
from edgeinfer.machine.host import host
from edgeinfer.runtime.llm import bundle as bundles


def variant(id: str, device: str, arch: str, *codes: str) -> Variant:
    names = [f"kernels.{c}.cubin" for c in codes] or ["kernels.so"]
    return Variant(
        id=id,
        target=id,
        format="llm",
        precision="w4",
        files=tuple(FileRecord(f"variants/{id}/{name}", "0" * 64, 1) for name in names),
        engines=(EngineRequirement("llm"),),
        constraints={"os": "linux", "arch": arch, "device": device},
    )


class Held:
    """A bundle of variants."""

    location = "a.edge"

    def __init__(self, *variants: Variant) -> None:
        self.manifest: Any = type("Manifest", (), {"variants": variants})


def chosen(*variants: Variant, variant: str = "") -> tuple[str, str]:
    held: Any = Held(*variants)
    one, why = bundles._choose(held, variant)
    return one.id, why


CPU = variant("cpu", "cpu", host().arch)
JETSON = variant("jetson", "gpu", "aarch64", "sm_87", "sm_110")


def test_without_a_gpu_the_cpus_is_taken_and_the_reason_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgeinfer.backends.llm.cuda.cuda_devices", lambda: ())
    id, why = chosen(JETSON, CPU)
    assert id == "cpu"
    assert why.startswith("variant jetson: its code is for NVIDIA GPUs (sm_87, sm_110)")
    with pytest.raises(NotAvailableError, match=r"a\.edge: variant jetson: .* finds none here"):
        chosen(JETSON)
    # Who asks for one gets it, and what its executor says.
    assert chosen(CPU, JETSON, variant="jetson") == ("jetson", "")


def test_with_a_gpu_its_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.backends.llm.cuda.cuda_devices", lambda: (object(),))
    monkeypatch.setattr("edgeinfer.backends.llm.cuda.compute_capability", lambda: "8.7")
    assert chosen(CPU, JETSON) == ("jetson", "")
    monkeypatch.setattr("edgeinfer.backends.llm.cuda.compute_capability", lambda: "9.0")
    id, why = chosen(CPU, JETSON)
    assert id == "cpu"
    assert why == "variant jetson: its code is for sm_87, sm_110; the GPU here is sm_90"


def test_code_for_another_processor_is_passed_over() -> None:
    other = variant("rpi5", "cpu", "riscv")
    id, why = chosen(other, CPU)
    assert (id, why) == ("cpu", f"variant rpi5: its code is for riscv, this is {host().arch}")
    with pytest.raises(NotAvailableError, match="variant rpi5: its code is for riscv"):
        chosen(other)
