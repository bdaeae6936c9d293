"""What the inputs of a model may hold, inferred from the operators that consume them."""

from edgeinfer.convert.verify.bounds.analysis import InputBounds, bounds_of
from edgeinfer.convert.verify.bounds.span import Span

__all__ = ["InputBounds", "Span", "bounds_of"]
