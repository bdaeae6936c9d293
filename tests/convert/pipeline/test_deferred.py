"""SymPy is loaded when something is computed with it."""

import subprocess
import sys

import pytest

pytest.importorskip("coremltools")

SCRIPT = """
import sys
from edgeinfer.convert.pipeline.deferred import import_onnx_ir
import_onnx_ir()
from edgeinfer.backends.engines import import_coremltools
import_coremltools()
from coremltools.converters.mil.mil import get_new_symbol
from coremltools.converters.mil.mil.types.symbolic import is_symbolic
assert not is_symbolic(3)
assert "sympy.core" in sys.modules and "sympy.polys" not in sys.modules
n = get_new_symbol()
assert "sympy.polys" in sys.modules
assert is_symbolic(n) and (2 * n + n).subs(n, 4) == 12
import sympy
assert isinstance(n, sympy.Symbol) and sympy.simplify(n - n) == 0
assert float(sympy.sqrt(2).evalf(30)) == 2**0.5
"""


def test_the_core_is_enough_until_there_is_a_symbol() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_passes_that_make_symbols_are_known_to_coremltools() -> None:
    from edgeinfer.backends.engines import import_coremltools
    from edgeinfer.convert.lower.coreml.package import _NEEDS

    assert _NEEDS.keys() <= set(import_coremltools().PassPipeline.DEFAULT.passes)
