"""What a request of tensors asks for besides numbers: order, time, and its sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeinfer.records import dataclass
from edgeinfer.runtime.serve.http import RequestError

_KNOWN = frozenset(
    {"binary_data_output", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end"}
)

MOST_ID = 128
"""Characters of a sequence's id: it is kept for as long as the sequence."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request is to be run.

    Attributes:
        priority: higher ones run first; None takes the model's.
        deadline_s: seconds after which it may not start any more.
        sequence: it is a step of; None for none.
        starts: the sequence, from zeros.
        ends: the sequence, whose states are forgotten then.
    """

    priority: float | None = None
    deadline_s: float | None = None
    sequence: str | int | None = None
    starts: bool = False
    ends: bool = False


NO_TERMS = Terms()


def read_terms(parameters: Mapping[str, Any]) -> Terms:
    """Read the parameters of a request; Triton counts timeouts in microseconds.

    Raises:
        RequestError: names those that are not known, and values that are none of theirs; the key
            may not come before others by so much.
    """
    if not parameters:
        return NO_TERMS
    if unknown := sorted(parameters.keys() - _KNOWN):
        raise RequestError(400, f"parameters: {', '.join(unknown)}: not supported")
    priority, timeout = _number(parameters, "priority"), _number(parameters, "timeout")
    starts, ends = _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")
    sequence = parameters.get("sequence_id")
    if sequence is not None and (isinstance(sequence, bool) or not isinstance(sequence, int | str)):
        raise RequestError(400, "parameters: sequence_id: expected a number or a text")
    if isinstance(sequence, str) and len(sequence) > MOST_ID:
        raise RequestError(
            400, f"parameters: sequence_id: at most {MOST_ID} characters, received {len(sequence)}"
        )
    # Clients send 0 or nothing where there is no sequence.
    sequence = sequence or None
    if sequence is None and (starts or ends):
        raise RequestError(400, "parameters: sequence_start and sequence_end need a sequence_id")
    seconds = None if timeout is None else max(0.0, timeout / 1e6)
    return Terms(priority, seconds, sequence, starts, ends)


_LARGEST = 1 << 53


def _number(parameters: Mapping[str, Any], name: str) -> float | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(400, f"parameters: {name}: expected a number")
    if not abs(value) <= _LARGEST:
        # Nor is what is no number.
        raise RequestError(400, f"parameters: {name}: expected at most {_LARGEST}, either way")
    return value


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(400, f"parameters: {name}: expected true or false")
    return value
