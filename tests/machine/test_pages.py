"""Which pages are given back: those that a file on disk can give again, and no others."""

import ctypes
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.machine import pages

INODE = "08:01 1234"


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (f"7f00-7f10 r--s 00000000 {INODE}    /data/model.onnx", True),
        (f"7f00-7f10 r--p 00000000 {INODE}    /usr/lib/libm.so.6", False),
        (f"7f00-7f10 rw-s 00000000 {INODE}    /data/shared", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /memfd:tensors (deleted)", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /dev/nvidia0", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /dev/shm/queue", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /sys/devices/x/resource0", False),
        ("7f00-7f10 r--s 00000000 00:00 0 ", False),
    ],
)
def test_what_is_given_back(line: str, taken: bool) -> None:
    before = f"7e00-7e10 rw-p 00000000 00:00 0\n{line}\n"
    assert re.findall(pages._MAPPED_FILE, before, re.MULTILINE) == (
        [("7f00", "7f10")] if taken else []
    )


def test_a_mapped_file_is_still_readable(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789" * 1000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view[:10] == b"0123456789"
        pages.give_back()
        assert view[:] == b"0123456789" * 1000


@pytest.mark.parametrize(
    ("line", "own_kb", "taken"),
    [
        (f"7f00-7f10 r-xp 00001000 {INODE}    /usr/lib/lib with space.so", 0, True),
        (f"7f00-7f10 r--p 00001000 {INODE}    /usr/lib/libm.so.6", 0, True),
        (f"7f00-7f10 r-xp 00001000 {INODE}    /usr/lib/libm.so.6", 4, False),
        (f"7f00-7f10 r--p 00001000 {INODE}    /usr/lib/libm.so.6", 120, False),
        (f"7f00-7f10 rw-p 00001000 {INODE}    /usr/lib/libm.so.6", 0, False),
        (f"7f00-7f10 rwxp 00001000 {INODE}    /usr/lib/libm.so.6", 0, False),
        (f"7f00-7f10 r--s 00001000 {INODE}    /data/model.onnx", 0, False),
        (f"7f00-7f10 r-xp 00001000 {INODE}    /memfd:jit (deleted)", 0, False),
        ("7f00-7f10 r-xp 00000000 00:00 0    [vdso]", 0, False),
    ],
)
def test_code_that_is_the_files_own_is_given_back(line: str, own_kb: int, taken: bool) -> None:
    def told(line: str, own_kb: int) -> str:
        sizes = {"Size": 64, "Rss": 64, "Private_Dirty": own_kb, "Anonymous": own_kb, "Swap": 0}
        return f"{line}\n" + "".join(f"{n}: {kb:8} kB\n" for n, kb in sizes.items())

    other = "7e00-7e10 r-xp 00000000 00:00 0"
    table = told(other, 8) + told(line, own_kb) + "VmFlags: rd ex\n" + told(other, 0)
    assert re.findall(pages._UNTOUCHED, table, re.MULTILINE) == (
        [("7f00", "7f10")] if taken else []
    )


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
def test_what_differs_from_its_file_stays(tmp_path: Path) -> None:
    path, size = tmp_path / "library", mmap.PAGESIZE
    path.write_bytes(b"a" * size)
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    view[:1] = b"b"
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    library = ctypes.CDLL(None)
    assert library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ) == 0
    pages.give_back_start()
    assert ctypes.string_at(address, 2) == b"ba"


CODE = """
import numpy
import onnxruntime
from edgeinfer.machine.pages import give_back_start, resident_mb

def own_mb():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024

kept = [bytearray(60_000) for _ in range(400)]
del kept[::2]
before, own = resident_mb(), own_mb()
give_back_start()
freed = own - own_mb()
total = numpy.ones((300, 300)).dot(numpy.ones(300)).sum()
print(before - resident_mb() - freed, freed, total, len(kept), onnxruntime.__version__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")
def test_an_engine_gives_most_of_its_code_and_what_it_freed_back_and_still_runs() -> None:
    pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    code_mb, freed_mb, total, *_ = done.stdout.split()
    assert float(total) == 90_000.0
    assert float(code_mb) > 8
    # Of 12 MB between what is kept, whole pages.
    assert float(freed_mb) > 8


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize(("heaps", "most"), [("", 2), ("5", 5)])
def test_threads_of_a_server_share_heaps(heaps: str, most: int) -> None:
    """Else large messages leave up to 64 MB in one for each thread that has read some."""
    code = (
        "import ctypes, sys, threading, os\n"
        "from edgeinfer.machine.pages import share_heaps\n"
        "library = ctypes.CDLL(None)\n"
        "library.fdopen.restype = library.malloc.restype = ctypes.c_void_p\n"
        "if not hasattr(library, 'malloc_info'): sys.exit(77)\n"
        "share_heaps()\n"
        "gate = threading.Barrier(7)\n"
        "def take():\n"
        "    library.malloc(5000)\n"
        "    gate.wait(30)\n"
        "for _ in range(6): threading.Thread(target=take).start()\n"
        "gate.wait(30)\n"
        "file = ctypes.c_void_p(library.fdopen(1, b'w'))\n"
        "library.malloc_info(0, file)\n"
        "library.fflush(file)\n"
    )
    given = {**os.environ, "MALLOC_ARENA_MAX": heaps}
    if not heaps:
        del given["MALLOC_ARENA_MAX"]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given)
    if done.returncode == 77:
        pytest.skip("another library of C")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<heap nr=") == most


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize(("threshold", "kept"), [("", True), ("65536", False)])
def test_a_server_keeps_what_it_freed_until_it_is_trimmed(threshold: str, kept: bool) -> None:
    """Else the system clears each page of a batch of large bodies anew."""
    code = (
        "import ctypes, sys\n"
        "from edgeinfer.machine.pages import keep_freed, trim\n"
        "library = ctypes.CDLL(None)\n"
        "library.sbrk.restype = library.malloc.restype = ctypes.c_void_p\n"
        "library.free.argtypes = [ctypes.c_void_p]\n"
        "if not hasattr(library, 'malloc_info'): sys.exit(77)\n"
        "keep_freed()\n"
        "blocks = [library.malloc(1 << 20) for _ in range(16)]\n"
        "full = library.sbrk(0)\n"
        "for each in reversed(blocks): library.free(each)\n"
        "freed = library.sbrk(0)\n"
        "trim()\n"
        "print(full - freed >= 8 << 20, freed - library.sbrk(0) >= 8 << 20)\n"
    )
    given = {**os.environ, "MALLOC_TRIM_THRESHOLD_": threshold, "MALLOC_MMAP_THRESHOLD_": ""}
    if threshold:
        # The test's blocks have to be of the heap in both.
        given["MALLOC_MMAP_THRESHOLD_"] = str(32 << 20)
    else:
        del given["MALLOC_TRIM_THRESHOLD_"], given["MALLOC_MMAP_THRESHOLD_"]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given)
    if done.returncode == 77:
        pytest.skip("another library of C")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ([str(False), str(True)] if kept else [str(True), str(False)])
