"""What tests of readers share: PyTorch's exporter looks at its functions once a run."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

REGISTRY = "torch.onnx._internal.exporter._registration"


@pytest.fixture(autouse=True, scope="module")
def functions_are_read_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each export a copy of one registry: made anew, it takes longer than the export.

    PyTorch parses the source of 500 functions each time, which the process of a user does once.
    """
    if not hasattr(request.module, "torch"):
        yield
        return
    registry: Any = getattr(importlib.import_module(REGISTRY), "ONNXRegistry", None)
    if not hasattr(registry, "from_torchlib"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        made = _made.setdefault("by", functools.cache(registry.from_torchlib))

        def copied(**given: Any) -> Any:
            one = copy.copy(made(**given))
            one.functions = {name: list(known) for name, known in one.functions.items()}
            return one

        patch.setattr(registry, "from_torchlib", staticmethod(copied))
        yield


_made: dict[str, Any] = {}
