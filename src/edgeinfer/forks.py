"""What a process that was forked has to know: of all that ran in its parent, nothing runs in it.

``fork`` copies memory and descriptors, and of the threads the one that called it. An engine's
workers, a child process's other end, a lock that another thread held are in the copy, and each of
them would be shared with the parent or waited for without end. So whatever owns one of these says
here what it does in a forked process: ``watch`` has its ``forked`` called there, before anything
else runs; ``lock`` and ``rlock`` make locks that are free there. A run pays nothing for it.

Only forks that Python knows of are seen: ``os.fork``, ``multiprocessing``, servers that fork
workers; not one that C code makes behind the interpreter's back, which Python itself does not
survive.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Watched(Protocol):
    """What knows its process."""

    def forked(self) -> None:
        """Let go of what is the parent's; called in the forked process, where no other thread is.

        Nothing is opened here, since the process may have been made to run another program, and
        nothing is closed whose closing waits for a thread.
        """
        ...


_watched: WeakSet[Any] = WeakSet()
_locks: WeakSet[Any] = WeakSet()
_owned: list[object] = []
_used: set[str] = set()
_inherited: set[str] = set()


def watch(it: Watched) -> None:
    """Have ``it.forked()`` called in each process that is forked from this one; held weakly."""
    _watched.add(it)


def lock() -> threading.Lock:
    """Make a lock that nobody holds in a forked process."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> threading.RLock:
    """Make a reentrant lock that nobody holds in a forked process."""
    made = threading.RLock()
    _locks.add(made)
    return made


class Here:
    """What a pickle cannot take to another process: it owns an engine, threads or files."""

    def __reduce__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"a {kind} belongs to the process that loaded it: load it there")


def leave_behind(*things: object) -> None:
    """Keep the parent's objects forever: what frees them waits for threads that are not here.

    Their memory is the parent's own as long as neither process writes to it.
    """
    import ctypes

    for thing in things:
        # More than a reference in a list, which the interpreter drops when it ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def owned(thing: T) -> T:
    """Keep what an engine has once for a process; forked processes never free it.

    Modules let go of what they hold when the interpreter ends, and so in the forked process too: to
    free it there ends threads and takes locks that are the parent's.
    """
    _owned.append(thing)
    return thing


def used(engine: str) -> None:
    """Note that an engine keeps threads or locks in this process that a fork does not copy."""
    _used.add(engine)


def is_inherited(engine: str) -> bool:
    """Whether a process that this one was forked from used the engine."""
    return engine in _inherited


class _Mine(threading.local):
    """How often this thread is in ``undivided``."""

    depth = 0


_mine = _Mine()
_held = threading.RLock()
_gate = threading.Condition(_held)
_inside = 0


@contextmanager
def undivided() -> Iterator[None]:
    """Have forks of other threads wait for the end of what is done inside.

    For products of NumPy: at a fork OpenBLAS ends the threads that another thread's product needs,
    and neither that one nor any in the forked process ever ends (0.3.31).
    """
    global _inside
    with _held:
        _inside += 1
    _mine.depth += 1
    try:
        yield
    finally:
        _mine.depth -= 1
        with _held:
            _inside -= 1
            _gate.notify_all()


def _before() -> None:
    _held.acquire()
    while _inside > _mine.depth:
        _gate.wait()


def _in_child() -> None:
    global _held, _gate, _inside
    _held, _inside = threading.RLock(), _mine.depth
    _gate = threading.Condition(_held)
    for each in list(_locks):
        each._at_fork_reinit()
    if _used:
        # An engine may lie in a ring of garbage that was not collected yet, as after an error; to
        # free it would wait for threads that are the parent's.
        gc.freeze()
    leave_behind(*_owned)
    _inherited.update(_used)
    _used.clear()
    problems = []
    for it in list(_watched):
        try:
            it.forked()
        # One that is at fault must not keep the others from letting go.
        except Exception as error:
            problems.append(error)
    if problems:
        raise problems[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=lambda: _held.release(), after_in_child=_in_child
    )
