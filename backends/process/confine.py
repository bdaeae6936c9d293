"""A second layer around a trial: Linux keeps the process from the network, others and files.

It is no reason to run what nobody vouches for: the process still reads what its user may read. It
stops what a library that is not what it seems would do first. Where a kernel lacks one of the two
parts, the other one stands alone; ``confine`` says which do.

Sources: landlock(7) with include/uapi/linux/landlock.h; seccomp(2) with linux/filter.h, seccomp.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP, _SET_FILTER, _ALL_THREADS = {"x86_64": 317, "aarch64": 277}, 1, 1
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_BENEATH, _VERSION = 1, 1

_WRITES = sum(1 << bit for bit in (1, *range(4, 13)))
"""Landlock's rights to change files and folders, of its first version."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_BIND_TCP, _CONNECT_TCP = 1, 2
_OF_FILES = (1 << 1) | _TRUNCATE

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FORBIDDEN: dict[str, tuple[int, ...]] = {
    # socket, connect, accept, bind, listen, execve, ptrace, accept4, process_vm_readv,
    # process_vm_writev, execveat, bpf, userfaultfd, unshare, setns, mount, pivot_root, kexec_load,
    # init_module, finit_module, keyctl, add_key, request_key, perf_event_open, open_by_handle_at,
    # io_uring_setup, pidfd_open, pidfd_getfd, pidfd_send_signal, rt_sigqueueinfo,
    # rt_tgsigqueueinfo. What is connected may be used.
    "x86_64": (
        *(41, 42, 43, 49, 50, 59, 101, 288, 310, 311, 322, 321, 323, 272, 308, 165, 155, 246, 175),
        *(313, 250, 248, 249, 298, 304, 425, 434, 438, 424, 129, 297),
    ),
    "aarch64": (
        *(198, 203, 202, 200, 201, 221, 117, 242, 270, 271, 281, 280, 282, 97, 268, 40, 41, 104),
        *(105, 273, 219, 217, 218, 241, 265, 425, 434, 438, 424, 138, 240),
    ),
}
_STARTS = {"x86_64": (59, 322), "aarch64": (221, 281)}
"""execve, execveat."""

_FORKS = {"x86_64": (57, 58), "aarch64": ()}
"""fork, vfork."""

_CLONE, _CLONE3, _THREAD = {"x86_64": 56, "aarch64": 220}, 435, 0x10000
"""What makes threads as well as processes, which its flags say; of the newer one a filter does not
see them, and libraries of C fall back to the older one where there is none."""

_SIGNALS = {"x86_64": (62, 200, 234), "aarch64": (129, 130, 131)}
"""kill, tkill, tgkill: abort() signals this very process."""

_CONTROL = {"x86_64": 16, "aarch64": 29}
"""ioctl."""

_TYPE, _PASTE = 0x5412, 0x541C
"""What puts letters into a terminal's input, as if its user had typed them: TIOCSTI, TIOCLINUX."""

_LOAD, _EQUAL, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _DENY, _LACK, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_X32 = 0x40000000


def confine(writable: Sequence[Path], *, programs: bool = False) -> tuple[str, ...]:
    """Keep this process from writing files, from the network and from other processes, for good.

    Args:
        writable: folders that it may go on writing in; those of devices always stay so.
        programs: it may start others, which are kept from the same; else it makes no process at
            all, so that it leaves none behind, and none forks without end.

    Returns:
        What stands: ``landlock``, ``seccomp``, both, or nothing where the kernel has neither.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _AUDIT or sys.maxsize < 1 << 32:
        return ()
    system = ctypes.CDLL(None, use_errno=True)
    if system.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return ()
    stands = []
    if _landlock(system, [*writable, Path("/dev")]):
        stands.append("landlock")
    if _seccomp(system, machine, programs):
        stands.append("seccomp")
    return tuple(stands)


def _landlock(system: ctypes.CDLL, writable: Sequence[Path]) -> bool:
    version = system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    if version < 1:
        return False
    files = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    network = _BIND_TCP | _CONNECT_TCP if version >= 4 else 0
    rights = struct.pack("<QQ", files, network)
    size = 16 if version >= 4 else 8
    ruleset = system.syscall(
        _CREATE_RULESET, ctypes.c_char_p(rights), ctypes.c_size_t(size), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return False
    try:
        for folder in writable:
            _let(system, ruleset, folder, files)
        return bool(system.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)


def _let(system: ctypes.CDLL, ruleset: int, place: Path, rights: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    # What is not there need not be writable.
    except OSError:
        return
    try:
        allowed = rights if place.is_dir() else rights & _OF_FILES
        rule = struct.pack("<Qi", allowed, descriptor)
        system.syscall(_ADD_RULE, ruleset, _BENEATH, ctypes.c_char_p(rule), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _seccomp(system: ctypes.CDLL, machine: str, programs: bool) -> bool:
    """Put the filter on every thread; one that was left out could be made to call for the rest."""
    code = program(machine, os.getpid(), programs=programs)
    kept = ctypes.create_string_buffer(code, len(code))
    about = _Program(len(code) // 8, ctypes.addressof(kept))
    call = _SECCOMP[machine], _SET_FILTER, _ALL_THREADS
    return bool(system.syscall(*map(ctypes.c_long, call), ctypes.byref(about)) == 0)


def program(machine: str, process: int, *, programs: bool = False) -> bytes:
    """Return the filter in the kernel's own form: calls that fail with EPERM from then on."""
    steps: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _DENY)]
    allowed = _STARTS[machine] if programs else ()
    for number in (n for n in _FORBIDDEN[machine] if n not in allowed):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    if not programs:
        for number in _FORKS[machine]:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
        steps += [
            (_EQUAL, 0, 1, _CLONE3),
            (_RETURN, 0, 0, _LACK),
            (_EQUAL, 0, 4, _CLONE[machine]),
            (_LOAD, 0, 0, 16),
            (_HAS, 1, 0, _THREAD),
            (_RETURN, 0, 0, _DENY),
            (_RETURN, 0, 0, _ALLOW),
        ]
    steps += [
        (_EQUAL, 0, 5, _CONTROL[machine]),
        (_LOAD, 0, 0, 24),
        (_EQUAL, 1, 0, _TYPE),
        (_EQUAL, 0, 1, _PASTE),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    kill, tkill, tgkill = _SIGNALS[machine]
    # Of a signal the receiver counts: this process alone, by kill and tgkill.
    steps += [(_EQUAL, 0, 1, tkill), (_RETURN, 0, 0, _DENY)]
    for number in (kill, tgkill):
        steps += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, 16),
            (_EQUAL, 1, 0, process),
            (_RETURN, 0, 0, _DENY),
            (_RETURN, 0, 0, _ALLOW),
        ]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
