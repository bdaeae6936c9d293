"""A test's own forks: what is done in a forked process, told to the process that forked."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.patience import Patience

OWN_S = 120.0
"""What a forked process may take of its own time before it is said to hang."""


def in_fork(do: Callable[[], Any]) -> Any:
    """Call something in a forked process and return its result, or its error.

    Raises:
        AssertionError: the process did not end, or ended without an answer.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = do()
        except BaseException as error:  # told, not handled
            result = error
        os.write(theirs, pickle.dumps(result))
        os._exit(0)
    os.close(theirs)
    patience = Patience(child, OWN_S)
    while not os.waitpid(child, os.WNOHANG)[0]:
        if patience.is_over():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the forked process did not end")
        time.sleep(0.005)
    with os.fdopen(ours, "rb") as stream:
        answer = stream.read()
    assert answer, "the forked process ended without an answer"
    return pickle.loads(answer)
