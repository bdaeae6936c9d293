"""A Python process of ours: how it is started, spoken to, and what became of it.

Two users: ``isolated``, where an engine may fail without taking its caller along, and the
converter, whose memory goes back to the system when its process ends. Neither ``fork`` (engines'
threads do not survive it) nor ``multiprocessing`` (it runs the user's ``__main__`` again) will do.

What it is sent are pickles, which only this process makes. What it answers is data (``answers``),
never unpickled: a process that reads a stranger's file may be the stranger's by then. Arrays travel
next to either and are never copied into it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from edgeinfer import forks
from edgeinfer.backends.process.answers import (
    NOTHING,
    Listed,
    NoAnswerError,
    decode,
    encode,
)
from edgeinfer.backends.process.answers import portable as answerable
from edgeinfer.backends.process.isolation import SUPPORTED
from edgeinfer.backends.process.words import Words
from edgeinfer.bundle.held import remove
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.bundle.sealing import KEY_ENV
from edgeinfer.errors import SURROUNDINGS, EdgeInferError, NotAvailableError
from edgeinfer.machine.cgroup import read_limits
from edgeinfer.machine.facts import free_mb
from edgeinfer.printable import visible

if TYPE_CHECKING:
    from edgeinfer.backends.process.emulator import Emulator

_SECRET = (KEY_ENV, "EDGEINFER_SERVE_KEYS", "EDGEINFER_UPSTREAM_KEY")
"""Prefixes of the names of environment variables that hold keys."""

_HEAD = struct.Struct("<IQ")
_SIZE = struct.Struct("<Q")
_TICK_S = 1.0
_END_S = 5.0
_WORDS_S = 1.0
_WORDS = 400
_SET_SIGNAL = 10
"""F_SETSIG, for ``fcntl``."""

_SURELY = 16 << 20
"""Bytes of an answer that there is always memory for."""


# The folder that a process is started in has no say in what is imported.
_STARTS: tuple[str, ...] = ("-P", "-m")
# Ctrl-C is for this process, which then ends the child in its own way.
_OWN_GROUP: dict[str, Any] = {"process_group": 0}
if sys.version_info < (3, 11):
    _STARTS = (
        "-c",
        "import sys; del sys.path[0], sys.argv[0]; import runpy; "
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)",
    )
    _OWN_GROUP = {"preexec_fn": os.setpgrp}


class ChildEndedError(Exception):
    """The process is gone; ``how`` says by which signal or with which exit code."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how)


class RemoteTraceback(Exception):  # noqa: N818 - shown as the cause of an error, never raised
    """What Python said of an error in the other process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def raise_answered(error: Exception, text: str) -> NoReturn:
    """Raise the error that a process answered; ``text`` is its traceback there.

    An error of Python's own is no finding: it is a mistake of ours, or the answer of whoever has
    taken the process over, and nobody can tell which.

    Raises:
        EdgeInferError: as it was answered.
        OSError: the machine is full or forbids something there.
        MemoryError: it has no memory left.
        ChildEndedError: any other.
    """
    is_full = isinstance(error, OSError) and error.errno in SURROUNDINGS
    if is_full or isinstance(error, EdgeInferError | MemoryError):
        raise error from RemoteTraceback(text)
    words = f"{type(error).__name__}: {' '.join(str(error).split())}"
    how = f"this is a bug, or its file took it over: {visible(words)[:_WORDS]}"
    raise ChildEndedError(how) from RemoteTraceback(text)


class Child:
    """A running ``python -m <module> <folder> <descriptors>``.

    It has a folder for its temporary files, which is removed with it, so that even a process that
    was killed leaves nothing behind. Standard input is its lifeline: it ends when this process
    does. What it prints goes to standard error, cleaned and bounded, unless errors are kept. In
    a process that is forked from this one it is as good as ended: the other end of its connection
    is this process's alone.

    Args:
        module: what it runs; calls ``connect``.
        descriptors: further ones that it inherits.
        keep_errors: hold back what it writes to standard error; the last lines are reported when it
            dies.
        emulator: Emulator of another CPU, whose Python runs it.

    Raises:
        NotAvailableError: no process can be started here.
    """

    def __init__(
        self,
        module: str,
        *,
        descriptors: tuple[int, ...] = (),
        keep_errors: bool = False,
        emulator: Emulator | None = None,
    ) -> None:
        if not SUPPORTED:
            raise NotAvailableError("this system cannot start a process of its own for an engine")
        try:
            self._temporary = Scratch()
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise NotAvailableError(f"no process could be started: {error}") from error
        self._socket = ours
        self._is_inherited = False
        try:
            with theirs:
                numbers = (theirs.fileno(), *descriptors)
                python = (sys.executable,) if emulator is None else emulator.command
                self._process = subprocess.Popen(
                    [*python, *_STARTS, module, str(self._temporary.path), *map(str, numbers)],
                    env=_environment(str(self._temporary.path), emulator),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE if keep_errors else subprocess.STDOUT,
                    pass_fds=numbers,
                    **_OWN_GROUP,
                )
        except BaseException as error:
            ours.close()
            self._temporary.cleanup()
            if isinstance(error, OSError):
                raise NotAvailableError(f"no process could be started: {error}") from error
            raise
        self._words: deque[bytes] = deque(maxlen=16)
        listen = [partial(_pass_on, self._process.stdout)]
        if keep_errors:
            listen.append(partial(_listen, self._process.stderr, self._words))
        self._listeners: list[threading.Thread] = []
        try:
            for each in listen:
                listener = threading.Thread(target=each, daemon=True)
                listener.start()
                self._listeners.append(listener)
        except RuntimeError as error:
            self.kill()
            raise NotAvailableError(f"no process could be started: {error}") from error
        forks.watch(self)

    def forked(self) -> None:
        """Give up our copies of the parent's ends, its lifeline above all."""
        self._is_inherited = True
        self._socket.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        # What it says is read by a thread of the parent, which may hold the reader's lock.
        forks.leave_behind(self._process)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            ChildEndedError: nobody reads it.
        """
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        try:
            _write(self._socket, head, [buffer.raw() for buffer in buffers])
        except OSError as error:
            raise ChildEndedError(self.how()) from error

    def receive(
        self, seconds: float | None = None, listed: Listed = NOTHING, form: Any = Any
    ) -> Any:
        """Wait for the next answer.

        Args:
            seconds: to wait.
            listed: what it may consist of.
            form: what it is as a whole; an annotation.

        Raises:
            ChildEndedError: the process ended first, or what came is no answer.
            TimeoutError: nothing came in the given time.
        """
        try:
            text, buffers = self._waited(partial(_message, self._socket, _refuse_more), seconds)
            return decode(text, buffers, listed, form)
        except NoAnswerError as error:
            raise ChildEndedError(f"its answer is none: {visible(str(error))[:_WORDS]}") from error

    def wait_for_answer(self, seconds: float | None = None) -> None:
        """Wait for a message without looking into it: whoever sends it may be anybody by now.

        Raises:
            ChildEndedError: the process ended first.
            TimeoutError: nothing came in the given time.
        """
        self._waited(partial(_exactly, self._socket, _HEAD.size), seconds)

    def _waited(self, take: Callable[..., Any], seconds: float | None) -> Any:
        until = None if seconds is None else time.monotonic() + seconds
        try:
            return take(self.is_alive, until)
        except (EOFError, ConnectionError) as error:
            raise ChildEndedError(self.how()) from error

    def is_alive(self) -> bool:
        """Whether it still runs, for this process."""
        return not self._is_inherited and self._process.poll() is None

    def how(self) -> str:
        """Say how it ended; called when it has, or is about to."""
        if self._is_inherited:
            return "it belongs to the process that this one was forked from"
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if code >= 0:
            text = f"exit code {code}"
        else:
            try:
                text = signal.Signals(-code).name
            except ValueError:
                text = f"signal {-code}"
            if -code == signal.SIGKILL:
                text += ", as when memory runs out"
        # Its last words may lie in the pipe still, which a process of its own may hold open.
        for listener in self._listeners:
            listener.join(_WORDS_S)
        words = b"".join(self._words).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(words) if line.strip()), "")
        return f"{text}: {last[:_WORDS]}" if last else text

    def kill(self) -> None:
        """End it at once, whatever it is doing, and remove what it left; twice is harmless."""
        if self._is_inherited:
            return
        try:
            self._process.kill()
            longest = None
        except PermissionError:
            # A confined process sends no signals; the end of the lifeline does it.
            longest = _END_S
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(longest)
        # It holds the pipe of the process's words; the collector may end a child within it.
        for listener in self._listeners:
            if listener is not threading.current_thread():
                listener.join(_WORDS_S)
        self._socket.close()
        self._temporary.cleanup()


def _listen(stream: Any, words: deque[bytes]) -> None:
    """Keep the last of what is written; not a method, which would keep the child alive."""
    with stream:
        while chunk := stream.read1(4096):
            words.append(chunk)


def _pass_on(stream: Any) -> None:
    """Show what is written."""
    words = Words(_stderr())
    with stream:
        while chunk := stream.read1(4096):
            words.show(chunk)


def connect() -> tuple[socket.socket, list[int]]:
    """Be the child: return the connection and the further descriptors from the command line.

    From now on this process ends when its parent does, and its temporary files with it.
    """
    temporary = sys.argv[1]
    first, *rest = map(int, sys.argv[2:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_if_stuck()
    threading.Thread(target=_end_with_parent, args=(temporary,), daemon=True).start()
    return socket.socket(fileno=first), rest


def portable(error: Exception) -> tuple[Exception, str]:
    """Return an error as it can be answered, and its traceback."""
    return answerable(error), "".join(traceback.format_exception(error))


def answer(connection: socket.socket, message: Any) -> None:
    """Be the child: write an answer; arrays are written from where they are."""
    _write(connection, *encode(message))


def read(connection: socket.socket) -> Any:
    """Be the child: read what the parent sent.

    Raises:
        EOFError: the other end is closed.
    """
    head, buffers = _message(connection)
    return pickle.loads(head, buffers=buffers)


def _write(connection: socket.socket, head: bytes, raws: Sequence[memoryview]) -> None:
    sizes = b"".join(_SIZE.pack(raw.nbytes) for raw in raws)
    connection.sendall(_HEAD.pack(len(raws), len(head)) + sizes + head)
    for raw in raws:
        connection.sendall(raw)


def _message(
    connection: socket.socket,
    refuse_more: Callable[[int], None] = lambda size: None,
    is_alive: Callable[[], bool] = lambda: True,
    until: float | None = None,
) -> tuple[bytearray, list[bytearray]]:
    """Read a message, unless ``refuse_more`` raises for its bytes.

    Raises:
        EOFError: the other end is closed, or ``is_alive`` says so.
        TimeoutError: it did not come in time.
    """

    def exactly(size: int) -> bytearray:
        return _exactly(connection, size, is_alive, until)

    count, length = _HEAD.unpack(exactly(_HEAD.size))
    refuse_more(count * _SIZE.size + length)
    sizes = [size for (size,) in _SIZE.iter_unpack(exactly(count * _SIZE.size))]
    refuse_more(length + sum(sizes))
    head = exactly(length)
    buffers = [exactly(size) for size in sizes]
    connection.settimeout(None)
    return head, buffers


def _refuse_more(size: int) -> None:
    """Refuse an answer that this machine has no memory for.

    Raises:
        NoAnswerError: it has less.
    """
    if size <= _SURELY:
        return
    free = free_mb(Path("/"), read_limits(Path("/")))
    if free is not None and size > free << 20:
        raise NoAnswerError(f"{size >> 20} MiB, more than what is free")


def _exactly(
    connection: socket.socket, size: int, is_alive: Callable[[], bool], until: float | None
) -> bytearray:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        left = _TICK_S if until is None else min(_TICK_S, until - time.monotonic())
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        try:
            got = connection.recv_into(view[have:])
        except TimeoutError:
            # A process that it started may hold the other end open.
            if not is_alive():
                raise EOFError from None
            continue
        if not got:
            raise EOFError
        have += got
    return data


def _environment(temporary: str, emulator: Emulator | None) -> Mapping[str, str]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    more = {} if emulator is None else emulator.environment
    # An engine that crashes may leave its memory on a disk; keys are not in it.
    own = {n: v for n, v in os.environ.items() if not n.startswith(_SECRET)}
    return {**own, "PYTHONPATH": path, "TMPDIR": temporary, **more}


def _stderr() -> int:
    """Return where the child prints: never our standard output, which is for results."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def _end_if_stuck() -> None:
    """Have Linux end this process some time after its parent, whatever it is doing.

    What waits for the parent's end needs the interpreter's lock, which an engine may keep.
    The end of our standard input is a signal whose handler is ``alarm`` itself: its argument,
    the signal's number, is the seconds until SIGALRM: ten.
    """
    if sys.platform != "linux":
        return
    import ctypes
    import fcntl

    system = ctypes.CDLL(None)
    system.signal(signal.SIGUSR1, ctypes.cast(system.alarm, ctypes.c_void_p))
    with contextlib.suppress(OSError):
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, _SET_SIGNAL, signal.SIGUSR1)
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _end_with_parent(temporary: str) -> NoReturn:
    """Wait for the end of the parent; its closing of our standard input is one too.

    A process that was forked while we were started has a copy of the other end, so the number of
    the parent is looked at too.
    """
    parent, ended = os.getppid(), select.poll()
    ended.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        while os.getppid() == parent:
            if ended.poll(_TICK_S * 1e3) and not os.read(0, 1):
                break
    remove(Path(temporary))
    os._exit(1)
