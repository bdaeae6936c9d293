"""Core AI."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.coreai.backend import CoreAIBackend as CoreAIBackend

__getattr__ = offers("edgeinfer.backends.coreai.backend", "CoreAIBackend")
