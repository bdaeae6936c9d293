"""Processes that search and measure: what takes one down costs one question."""

from __future__ import annotations

from typing import Any, Literal

from edgeinfer.backends.process import child, isolation

_START_S = 120.0

_ANSWER = tuple[Literal["done"], Any] | tuple[Literal["failed"], tuple[Exception, str]]


class LostError(Exception):
    """A process ended or gave no answer; ``how`` says which."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how)


class TuningWorker:
    """A process that answers questions; it is started when one is asked, also after it was lost.

    Args:
        module: what it runs; calls ``serve``.
        setup: sent to it before anything else, whenever it is started.
    """

    def __init__(self, module: str, *setup: Any) -> None:
        self._module, self._setup = module, setup
        self._child: child.Child | None = None

    def ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        """Ask and wait.

        Raises:
            LostError: the process ended or took too long; the next question starts another.
            ConnectionError: it did not get ready to be asked, for which the question is not to
                blame.
            Exception: what the method raised.
        """
        try:
            if self._child is None:
                self._start(max(_START_S, seconds))
            return self._tell(method, *arguments, seconds=seconds)
        except child.ChildEndedError as error:
            self.close()
            raise LostError(error.how) from error
        except TimeoutError as error:
            self.close()
            raise LostError(f"no answer for {seconds:g} s") from error
        except KeyboardInterrupt:
            # An answer to this would be taken for one to the next question.
            self.close()
            raise

    def _start(self, seconds: float) -> None:
        self._child = child.Child(self._module, keep_errors=True)
        try:
            self._tell("setup", *self._setup, seconds=seconds)
        except child.ChildEndedError as error:
            self.close()
            raise ConnectionError(f"its process ended before it was ready: {error.how}") from error
        except TimeoutError as error:
            self.close()
            raise ConnectionError(f"it was not ready after {seconds:g} s") from error
        except Exception:
            self.close()
            raise

    def _tell(self, method: str, *arguments: Any, seconds: float) -> Any:
        if self._child is None:
            raise LostError("closed")
        self._child.send((method, arguments))
        kind, content = self._child.receive(seconds, form=_ANSWER)
        if kind == "done":
            return content
        error, text = content
        raise error from child.RemoteTraceback(text)

    def close(self) -> None:
        """End the process; twice is harmless."""
        if self._child is not None:
            self._child.kill()
            self._child = None


def serve(host: Any) -> None:
    """Be the process: answer with the methods of an object until nobody asks."""
    connection, _ = child.connect()
    isolation.make_expendable()
    while True:
        try:
            method, arguments = child.read(connection)
        except EOFError:
            return
        try:
            result = getattr(host, method)(*arguments)
        except Exception as error:
            child.answer(connection, ("failed", child.portable(error)))
        else:
            child.answer(connection, ("done", result))
