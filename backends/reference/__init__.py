"""ONNX's reference evaluator."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.reference.backend import ReferenceBackend as ReferenceBackend

__getattr__ = offers("edgeinfer.backends.reference.backend", "ReferenceBackend")
