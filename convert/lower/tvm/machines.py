"""The instruction sets that code is made for; a profile names one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True, slots=True)
class Machine:
    """One instruction set and how code for it is made.

    Attributes:
        name: as in a profile's ``machine``.
        arch: Architecture of the CPU that calls the code.
        cpu: LLVM's name of the CPU.
        lanes: float32 elements of one vector register.
        registers: vector registers.
        triple: LLVM's target triple.
        linker: the compiler driver that makes the shared library.
        features: what the CPU must have, as Linux lists it in ``/proc/cpuinfo``.
        attributes: LLVM features beyond those of ``cpu``.
        cuda: architecture of the GPU; empty for code that runs on the CPU.
        system: that loads the library, ``linux`` or ``macos``.
    """

    name: str
    arch: str
    cpu: str
    lanes: int
    registers: int
    triple: str
    linker: str
    features: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    cuda: str = ""
    system: str = "linux"

    def description(self, threads: int = 0) -> dict[str, Any]:
        """Return what TVM makes its target from.

        Args:
            threads: that loops are cut for; a search needs to know.
        """
        host: dict[str, Any] = {"kind": "llvm", "mtriple": self.triple, "mcpu": self.cpu}
        if self.attributes:
            host["mattr"] = list(self.attributes)
        if not self.cuda:
            return {**host, "num-cores": threads} if threads else host
        return {
            "kind": "cuda",
            "arch": self.cuda,
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
            "host": host,
        }

    def target(self) -> tvm.target.Target:
        """Return TVM's description of it."""
        from tvm.target import Target

        given = self.description()
        host = given.pop("host", None)
        return Target(given, host=host) if host else Target(given)


_X86: dict[str, Any] = {"arch": "x86_64", "triple": "x86_64-linux-gnu", "linker": "gcc"}
_ARM: dict[str, Any] = {
    "arch": "aarch64",
    "triple": "aarch64-linux-gnu",
    "linker": "aarch64-linux-gnu-gcc",
    "lanes": 4,
    "registers": 32,
}
_APPLE: dict[str, Any] = {
    **_ARM,
    "triple": "arm64-apple-macosx12.0.0",
    "linker": "zig",
    "system": "macos",
}
_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

MACHINES = {
    m.name: m
    for m in (
        Machine("x86-64-v3", cpu="x86-64-v3", lanes=8, registers=16, features=_V3, **_X86),
        Machine(
            "x86-64-v3-vnni",
            cpu="x86-64-v3",
            lanes=8,
            registers=16,
            features=(*_V3, "avx_vnni"),
            attributes=("+avxvnni",),
            **_X86,
        ),
        Machine("x86-64-v4", cpu="x86-64-v4", lanes=16, registers=32, features=_V4, **_X86),
        Machine(
            "x86-64-v4-vnni",
            cpu="x86-64-v4",
            lanes=16,
            registers=32,
            features=(*_V4, "avx512_vnni"),
            attributes=("+avx512vnni",),
            **_X86,
        ),
        Machine(
            "x86-64-v4-amx",
            cpu="x86-64-v4",
            lanes=16,
            registers=32,
            features=(*_V4, "avx512_vnni", "amx_tile", "amx_int8"),
            attributes=("+avx512vnni", "+amx-tile", "+amx-int8"),
            **_X86,
        ),
        Machine("cortex-a72", cpu="cortex-a72", features=("asimd",), **_ARM),
        Machine("cortex-a76", cpu="cortex-a76", features=("asimd", "asimddp", "fphp"), **_ARM),
        Machine(
            "neoverse-v1", cpu="neoverse-v1", features=("asimd", "asimddp", "i8mm", "fphp"), **_ARM
        ),
        # Linux does not run there, so it has no names for what these CPUs have; all have this.
        Machine("apple-m", cpu="apple-m1", **_APPLE),
        Machine("sm_87", cpu="cortex-a78", features=("asimd", "asimddp"), cuda="sm_87", **_ARM),
        Machine(
            "sm_110",
            cpu="neoverse-v3ae",
            features=("asimd", "asimddp", "i8mm", "sve2"),
            cuda="sm_110",
            **_ARM,
        ),
        Machine(
            "sm_90", cpu="x86-64-v3", lanes=8, registers=16, features=_V3, cuda="sm_90", **_X86
        ),
    )
}


def machine(name: str) -> Machine:
    """Return an instruction set by its name.

    Raises:
        UsageError: code for it cannot be made.
    """
    if name not in MACHINES:
        known = ", ".join(MACHINES)
        raise UsageError(f"machine {name!r}: no code is made for it; known: {known}")
    return MACHINES[name]
