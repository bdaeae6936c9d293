"""Which programs coremltools' search for transposes can do anything about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813

from edgeinfer.convert.lower.coreml.transposes import may_cancel


def _program(body: Callable[[Any], Any]) -> Any:
    @mb.program(input_specs=[mb.TensorSpec((2, 3, 4))])  # type: ignore[untyped-decorator]
    def made(x: Any) -> Any:
        return body(x)

    return made


def _turned(x: Any, *perm: int) -> Any:
    return mb.transpose(x=x, perm=list(perm))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda x: mb.relu(x=x), False),
        (lambda x: mb.relu(x=_turned(x, 2, 0, 1)), False),
        (lambda x: _turned(mb.relu(x=_turned(x, 2, 0, 1)), 1, 2, 0), True),
        (lambda x: _turned(mb.relu(x=_turned(x, 2, 0, 1)), 2, 0, 1), False),
        (lambda x: _turned(mb.softmax(x=_turned(x, 1, 0, 2)), 1, 0, 2), False),
        (lambda x: mb.add(x=_turned(x, 1, 0, 2), y=_turned(mb.exp(x=x), 1, 0, 2)), True),
        (
            lambda x: mb.matmul(
                x=_turned(x, 1, 0, 2), y=_turned(mb.exp(x=x), 1, 0, 2), transpose_y=True
            ),
            False,
        ),
    ],
)
def test_transposes_that_may_cancel(body: Callable[[Any], Any], expected: bool) -> None:
    assert may_cancel(_program(body)) is expected
