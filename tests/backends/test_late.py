"""Packages of engines offer their class without importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeinfer.backends import registry


@pytest.mark.sample(4)
@pytest.mark.parametrize("place", registry.BUILT_IN.values())
def test_a_package_offers_its_class_late(place: str) -> None:
    package, _, name = place.partition(":")
    if package.endswith(".backend"):
        pytest.skip("names the module itself")
    code = (
        f"import sys, {package} as package; late = '{package}.backend' not in sys.modules;"
        f"print(late, package.{name}.name, hasattr(package, 'Other'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    late, backend, other = done.stdout.split()
    assert (late, other) == ("True", "False")
    assert registry.BUILT_IN[backend] == place
