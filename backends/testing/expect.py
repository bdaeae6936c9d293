"""How a check says that something is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgeinfer.backends.base import Executable
from edgeinfer.backends.testing.cases import Case, Values, wrong
from edgeinfer.errors import EdgeInferError, RunError


class CheckError(AssertionError):
    """A backend does not do what the protocol promises."""


def require(holds: bool, message: str) -> None:
    """Fail the check unless something holds."""
    if not holds:
        raise CheckError(message)


@contextmanager
def expected_error(kind: type[EdgeInferError], action: str) -> Iterator[None]:
    """Fail the check unless the block raises this kind of error with a message of one line."""
    try:
        yield
    except EdgeInferError as error:
        require(
            isinstance(error, kind),
            f"{action}: expected {kind.__name__}, received {type(error).__name__}: {error}",
        )
        require(bool(str(error).strip()), f"{action}: {kind.__name__} has no message")
        require("\n" not in str(error), f"{action}: the message has several lines: {error}")
    except Exception as error:
        raise CheckError(
            f"{action}: expected {kind.__name__}, received {type(error).__name__}: {error}"
        ) from error
    else:
        raise CheckError(f"{action}: expected {kind.__name__}, nothing was raised")


def require_outputs(outputs: Any, expected: Values, where: str) -> None:
    """Fail the check unless the outputs are the expected ones."""
    require(isinstance(outputs, dict), f"{where}: expected a dict, received {type(outputs)}")
    require(
        list(outputs) == list(expected),
        f"{where}: expected outputs {list(expected)} in this order, received {list(outputs)}",
    )
    for name, value in expected.items():
        fault = wrong(value, outputs[name])
        require(not fault, f"{where}: output {name!r}: {fault}")


def require_runs(executable: Executable, case: Case) -> None:
    """Fail the check unless every run of a case gives the right numbers."""
    for index, (feeds, expected) in enumerate(case.runs()):
        where = f"{case.name}, run {index}"
        try:
            outputs = executable.run(feeds)
        except RunError:
            if case.may_refuse:
                continue
            raise
        require_outputs(outputs, expected, where)
