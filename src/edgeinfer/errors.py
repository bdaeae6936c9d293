"""Every error edgeinfer raises on purpose; anything else that escapes is a bug.

::

    EdgeInferError                  exit code
    ├── ConvertError                1
    │   ├── SourceError             1   the model file cannot be read
    │   ├── UnsupportedError        1   .problems: every node that cannot be lowered, and why
    │   └── VerifyError             1   .report: an artifact left its accuracy budget
    ├── BundleError                 1   a bundle is damaged, altered or of an unknown schema
    │   ├── SignatureError          1   it is not signed by a key that is trusted here
    │   ├── UntrustedError          1   a part is machine code that nothing vouches for
    │   └── DecryptionError         1   no key, another key, or altered while it was encrypted
    ├── InputError (ValueError)     1   a tensor given to a session is not what the model takes
    ├── UsageError                  2   a request that contradicts itself or names what is not there
    │   └── ProfileError            2   a device profile is malformed or unknown
    ├── BackendError                3
    │   ├── NotAvailableError       3   the engine is not installed, or has no device here
    │   │   └── RefusedError        1   engines are here, and refuse what the bundle has for them
    │   ├── LoadError               3   the engine refuses the artifact
    │   │   └── DamagedError        1   a file of the artifact is damaged
    │   ├── RunError                3   the engine failed in a run
    │   │   └── MismatchError       1   it gave something else than the bundle says
    │   ├── CrashedError            3   the process it ran in ended or hung: .engine .stage .how
    │   ├── DeadlineError           3   a run was not started, because its deadline had passed
    │   ├── MemoryBudgetError       3   a model does not fit into a Runtime's memory
    │   ├── QueueFullError          3   as many requests wait already as may
    │   ├── OutOfPagesError         3   all pages of a language model's cache are in use
    │   └── ClosedError             3   a session or executable was used after close()
    └── OutputError                 3   a result cannot be written (permissions, full disk)

Exit codes of the command line: 0 fine, 1 a finding about the model, 2 usage or configuration,
3 environment.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

from edgeinfer.records import dataclass

SURROUNDINGS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
    | {errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""System errors that say something about this machine and nothing about edgeinfer."""

Reason = Literal[
    "unsupported_op",
    "requires_constant",
    "unsupported_attribute",
    "unsupported_dtype",
    "unsupported_rank",
    "dynamic_shape",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One node that a target cannot express.

    Attributes:
        node: name of the node, or ``#index`` where the model gives none.
        op: operator with domain when it is not the default one, e.g. ``com.acme::Foo``.
        reason: code from the closed list above.
        detail: what exactly, e.g. ``axis=1: takes the last axis only``.
        hint: what the user can do about it; empty when nothing is known.
    """

    node: str
    op: str
    reason: Reason
    detail: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.op} {self.node!r}: {self.reason}: {self.detail}{hint}"


class EdgeInferError(Exception):
    """Base of all; the message is one line: what, where, expected, received, what to do.

    What a class annotates is what its errors hold, and all that comes of one from another process.
    """

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Some constructors take other arguments than the message.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[EdgeInferError], args: tuple[Any, ...], fields: dict[str, Any]
) -> EdgeInferError:
    """Make an error again that came from another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class ConvertError(EdgeInferError):
    """A model cannot be converted."""


class SourceError(ConvertError):
    """A source model cannot be read; nothing was written."""


class UnsupportedError(ConvertError):
    """A target cannot express parts of the model; lists all of them.

    Attributes:
        target: the target that refused, or words for the reader that did.
        problems: one entry per node.
    """

    target: str
    problems: list[Problem]

    def __init__(self, target: str, problems: list[Problem], owners: Sequence[str] = ()) -> None:
        """Write the message.

        Args:
            target: that refused; several are named together.
            problems: one entry per node and target.
            owners: which target each problem is of, where there are several.
        """
        self.target = target
        self.problems = problems
        nodes = len({(p.op.rpartition("::")[2], p.node) for p in problems})
        count = f"{nodes} node" + ("s" if nodes > 1 else "")
        # A reader of files is no target that anybody requested.
        who = target if " " in target else f"target {target!r}"
        if len(set(owners)) > 1:
            lines = [f"  {o}: {p}" for o, p in zip(owners, problems, strict=True)]
        else:
            lines = [f"  {p}" for p in problems]
        super().__init__("\n".join((f"{who} cannot express {count}:", *lines)))


class VerifyError(ConvertError):
    """An artifact left its accuracy budget, so no bundle was written.

    Attributes:
        report: the verification report as JSON-ready data.
    """

    report: dict[str, Any]

    def __init__(self, message: str, report: dict[str, Any] | None = None) -> None:
        self.report = report or {}
        super().__init__(message)


class BundleError(EdgeInferError):
    """A bundle is damaged, altered, unsafe to unpack or written by an unknown schema."""


class SignatureError(BundleError):
    """A bundle is not signed by a key that is trusted here."""


class UntrustedError(BundleError):
    """A part of a bundle is machine code, and nothing says that it may run here."""


class DecryptionError(BundleError):
    """An encrypted bundle does not open: no key, another key, or bytes that were altered."""


class InputError(EdgeInferError, ValueError):
    """A tensor given to a session is not what the model takes.

    Attributes:
        name: the input concerned.
        expected: what the model takes.
        received: what was given.
    """

    name: str
    expected: str
    received: str

    def __init__(self, name: str, expected: str, received: str, hint: str = "") -> None:
        self.name, self.expected, self.received = name, expected, received
        tail = f"; {hint}" if hint else ""
        super().__init__(f"input {name!r}: expected {expected}, received {received}{tail}")


class UsageError(EdgeInferError):
    """A request contradicts itself or names what is not there."""

    exit_code = 2


class ProfileError(UsageError):
    """A device profile is malformed or unknown."""


class BackendError(EdgeInferError):
    """An engine failed."""

    exit_code = 3


class NotAvailableError(BackendError):
    """The engine is not installed or has no device here; the message has the install line."""


class RefusedError(NotAvailableError):
    """Engines are here, and refuse what the bundle has for them: the bundle is at fault."""

    exit_code = 1


class LoadError(BackendError):
    """The engine refuses the artifact."""


class DamagedError(LoadError):
    """A file of the artifact is damaged."""

    exit_code = 1


class RunError(BackendError):
    """The engine failed during a run."""


class MismatchError(RunError):
    """What the engine gave is not what the bundle says of its outputs: the artifact is at fault."""

    exit_code = 1


class CrashedError(BackendError):
    """The process that an engine ran in ended by itself or was stopped because it hung.

    Attributes:
        engine: whose process it was.
        stage: what it was doing.
        how: the signal or exit code that ended it, or for how long it gave no answer.
    """

    engine: str
    stage: str
    how: str

    def __init__(self, engine: str, stage: str, how: str, hint: str = "") -> None:
        self.engine, self.stage, self.how = engine, stage, how
        tail = f"; {hint}" if hint else ""
        super().__init__(f"{engine}: its process ended while it was to {stage}: {how}{tail}")

    @property
    def by_fault(self) -> bool:
        """Whether it ended itself by a fault, which the same input brings about again."""
        return self.how.startswith(("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"))


class DeadlineError(BackendError, TimeoutError):
    """A run was not started, because its deadline had passed while it waited."""


class MemoryBudgetError(BackendError):
    """A model does not fit into the memory that a ``Runtime`` may use."""


class QueueFullError(BackendError):
    """A request was not taken, because as many as may wait already; try again later."""


class OutOfPagesError(BackendError):
    """All pages of a language model's cache are in use."""


class ClosedError(BackendError):
    """A session or executable was used after ``close()``."""


class OutputError(EdgeInferError):
    """A result cannot be written; nothing half-written is left behind."""

    exit_code = 3


@dataclass(slots=True)
class Remarks:
    """What a stage changed or noticed, in order, for the report; never an excuse for an error."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Append one line."""
        self.lines.append(line)
