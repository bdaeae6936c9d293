"""The command, which tells how many bytes it holds for each line that it reads.

Live bytes of malloc, which Python's own objects take too where ``PYTHONMALLOC`` says so: no page
that is kept, no hole between blocks and no garbage counts, so neither load nor time plays a part.
Linux with glibc.
"""

import ctypes
import gc
import sys
import threading

from edgeinfer.cli import main

FIELDS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "mapped",
    "usmblks",
    "fsmblks",
    "used",
    "free",
    "top",
)
ENVIRONMENT = {
    "PYTHONMALLOC": "malloc",
    # What threads have set aside of freed blocks counts as used.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}


class Heap(ctypes.Structure):
    """What mallinfo2 tells."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def tell() -> None:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    for _ in sys.stdin:
        gc.collect()
        found = mallinfo2()
        sys.stdout.write(f"{found.used + found.mapped}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    threading.Thread(target=tell, daemon=True).start()
    main()
