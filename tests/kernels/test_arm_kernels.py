"""The tests of the kernels alone once more, as code for Arm: numbers under emulation.

The numbers need what ``tests/e2e/test_arm.py`` needs. Times under emulation say nothing.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels import test_attend, test_norms, test_rows, test_spectrum
from tests.kernels.run import HERE, Array, tvm

from edgeinfer.backends.process.emulator import emulator  # isort: skip
from edgeinfer.convert.lower.tvm.machines import machine  # isort: skip

SERVE = """
import sys
from pathlib import Path
import numpy as np
from edgeinfer.backends.engines import import_tvm_runtime
from tests.kernels.placed import misaligned
runtime = import_tvm_runtime()
folder = Path(sys.argv[1])
for line in sys.stdin:
    number = line.strip()
    kernel = runtime.load_module(str(folder / f"{number}.so"))["kernel"]
    given = np.load(folder / "given.npz")
    arrays = [misaligned(given[str(i)]) for i in range(len(given.files))]
    kernel(*(runtime.from_dlpack(a) for a in arrays))
    np.savez(folder / "made.npz", **{str(i): a for i, a in enumerate(arrays)})
    print("done", flush=True)
"""

WHAT = (
    test_attend.test_attend,
    test_attend.test_what_lies_behind_the_last_token_is_not_read,
    test_attend.test_scores_of_any_size_and_none,
    test_rows.test_rope,
    test_rows.test_softmax,
    test_norms.test_reduced,
    test_norms.test_normalised,
    test_spectrum.test_bands,
)


class Emulated:
    """A process of the emulator that runs kernels as they come."""

    def __init__(self, name: str, folder: Path) -> None:
        self._where, self._folder, self._count = machine(name), folder, 0
        arm = emulator(self._where.arch, self._where.cpu)
        paths = {"PYTHONPATH": f"{arm.environment['PYTHONPATH']}:{Path(__file__).parents[2]}"}
        self._process = subprocess.Popen(
            [*arm.command, "-c", SERVE, str(folder)],
            env={**arm.environment, **paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.calls = 0

    def compiled(self, kernel: Any, name: str) -> Callable[..., None]:
        """Play ``tests.kernels.run.compiled``."""
        from tvm.support import cc

        assert name == self._where.name
        self._count += 1
        path = self._folder / f"{self._count}.so"
        module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
        made = tvm.compile(module, target=self._where.target())
        made.export_library(str(path), fcompile=cc.cross_compiler(self._where.linker))
        return lambda *arrays, number=self._count: self._call(number, arrays)

    def _call(self, number: int, arrays: tuple[Array, ...]) -> None:
        named = {str(i): a for i, a in enumerate(arrays)}
        np.savez(self._folder / "given.npz", **named)  # type: ignore[arg-type]
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{number}\n")
        stdin.flush()
        assert stdout.readline() == "done\n"
        made = np.load(self._folder / "made.npz")
        for i, array in enumerate(arrays):
            array[...] = made[str(i)]
        self.calls += 1

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def _combinations(function: Any) -> Iterator[dict[str, Any]]:
    """What a test is parametrized with."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "sample":
            # Which rows a run of all tests takes.
            continue
        assert mark.name == "parametrize"
        names = mark.args[0]
        several = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        axes.append(
            [dict(zip(several, v if len(several) > 1 else (v,), strict=True)) for v in mark.args[1]]
        )
    for chosen in itertools.product(*axes):
        yield {name: value for part in chosen for name, value in part.items()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["cortex-a72", "cortex-a76"])
def test_numbers_under_emulation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated, first = Emulated(name, tmp_path), HERE[0]
    for module in (test_attend, test_norms, test_rows, test_spectrum):
        monkeypatch.setattr(module, "compiled", emulated.compiled)
        monkeypatch.setattr(module, "HERE", (name,))
        if hasattr(module, "MACHINE"):
            monkeypatch.setattr(module, "MACHINE", name)
    try:
        for function in WHAT:
            for given in _combinations(function):
                if given.get("name", first) == first:
                    function(**given | ({"name": name} if "name" in given else {}))
    finally:
        emulated.close()
    assert emulated.calls > len(WHAT)
