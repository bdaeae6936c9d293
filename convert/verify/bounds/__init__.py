"""What the inputs of a model may hold, told from the operators that consume them."""

from edgeinfer.convert.verify.bounds.analysis import Bounds, bounds_of
from edgeinfer.convert.verify.bounds.span import Span

__all__ = ["Bounds", "Span", "bounds_of"]
