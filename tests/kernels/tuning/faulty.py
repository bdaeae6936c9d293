"""A worker that does as it is told, also if that is to end."""

from __future__ import annotations

import os
import signal
import time

from edgeinfer.kernels.tuning.worker import serve


class Faulty:
    """Its methods are the questions."""

    def setup(self, name: str) -> None:
        self.name = name
        if name in ("crash", "hang", "fail"):
            getattr(self, name)()

    def hello(self) -> tuple[str, int]:
        return self.name, os.getpid()

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang(self) -> None:
        time.sleep(60)

    def fail(self) -> None:
        raise ValueError("as asked")


if __name__ == "__main__":
    serve(Faulty())
