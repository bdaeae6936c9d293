from dataclasses import replace

from edgeinfer.runtime.devices import available_cpus, fingerprint, parse_cpuinfo

X86 = """processor\t: 0
model name\t: AMD EPYC 7B13
flags\t\t: fpu avx avx2 fma f16c sse4_2 constant_tsc
bugs\t\t:

processor\t: 1
model name\t: AMD EPYC 7B13
flags\t\t: fpu avx avx2 fma f16c sse4_2 constant_tsc
"""
PI = """processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid asimdhp asimddp
CPU implementer\t: 0x41
CPU part\t: 0xd0b

Model\t\t: Raspberry Pi 5 Model B Rev 1.0
"""


def test_name_and_decisive_features_are_read() -> None:
    assert parse_cpuinfo(X86) == ("AMD EPYC 7B13", ("avx", "avx2", "f16c", "fma"))
    assert parse_cpuinfo(PI) == ("0x41 0xd0b", ("asimd", "asimddp", "asimdhp"))
    assert parse_cpuinfo("")[1] == ()


def test_this_machine_has_a_stable_key() -> None:
    here = fingerprint()
    assert here == fingerprint()
    assert here.cpus == available_cpus() >= 1
    assert len(here.key) == 16


def test_the_key_changes_with_what_decides_speed() -> None:
    here = fingerprint()
    assert replace(here, cpus=here.cpus + 1).key != here.key
    assert replace(here, features=("x",)).key != here.key
    assert replace(here, memory_mb=1).key == here.key
