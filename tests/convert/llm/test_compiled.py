"""What compiled kernels are kept by."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from edgeinfer.bundle.cache import writable_folder
from edgeinfer.bundle.kept import keep
from edgeinfer.convert.llm import compiled
from edgeinfer.convert.llm.plan import Kernel
from edgeinfer.kernels import defs

_IMPORTED = re.compile(r"^from edgeinfer\.kernels\.defs(?:\.(\w+)| import (\w+))", re.MULTILINE)


def test_kernels_are_kept_by_all_that_they_are_written_with() -> None:
    """One of these files was removed, and no language model could be converted."""
    (folder,) = defs.__path__
    texts = [path.read_text("utf-8") for path in Path(folder, "llm").glob("*.py")]
    found = {a or b for text in texts for a, b in _IMPORTED.findall(text)} - {"llm"}
    assert found == set(compiled.SHARED)


def test_an_object_that_is_not_whole_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of no bytes was linked, and every conversion failed until somebody removed it."""
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "_sources", lambda machine: "of a test")
    folder = writable_folder("llm-kernels")
    kernels = [Kernel(name, "norm", ()) for name in ("whole", "cut", "altered", "unsigned", "new")]
    places = [folder / f"{compiled._key('of a test', kernel)}.o" for kernel in kernels]
    for place in places[:4]:
        for suffix in (".json", ".o"):
            made = tmp_path / "made"
            made.write_bytes(b"[]")
            keep(made, place.with_suffix(suffix))
    places[1].write_bytes(b"")
    places[2].write_bytes(b"{}")
    places[3].with_suffix(".json").write_bytes(b"")
    asked: dict[str, Kernel] = {}
    monkeypatch.setattr(compiled, "_compile", lambda lacking, *_: asked.update(lacking))
    objects, count = compiled.compile_kernels(kernels, cast(Any, None))
    assert (objects, count) == (places, 4)
    assert [kernel.name for kernel in asked.values()] == ["cut", "altered", "unsigned", "new"]


def test_kernels_do_not_check_what_describes_their_arguments(tmp_path: Path) -> None:
    """The checks were some kilobytes of code for each of the phases of a layer."""
    pytest.importorskip("tvm")
    from edgeinfer.convert.lower.tvm.machines import machine

    compiled._write(
        [("made", Kernel("norm", "norm", (64, 64, 1e-5)))], machine("cortex-a76"), tmp_path
    )
    assert b"Mismatched" not in (tmp_path / "made.o").read_bytes()
