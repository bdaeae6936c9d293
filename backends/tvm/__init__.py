"""TVM: libraries of machine code, and functions that it compiled."""

from typing import TYPE_CHECKING

from edgeinfer.backends.late import offers

if TYPE_CHECKING:
    from edgeinfer.backends.tvm.backend import TvmBackend as TvmBackend

__getattr__ = offers("edgeinfer.backends.tvm.backend", "TvmBackend")
