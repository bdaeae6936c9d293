"""LiteRT: ``tflite`` files."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.litert.backend import LitertBackend as LitertBackend

__getattr__ = offers("edgeinfer.backends.litert.backend", "LitertBackend")
