"""Core ML on a Mac."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.coreml.backend import CoreMLBackend as CoreMLBackend

__getattr__ = offers("edgeinfer.backends.coreml.backend", "CoreMLBackend")
