"""What compiled kernels are kept by."""

from __future__ import annotations

import re
from pathlib import Path

from edgeinfer.convert.llm import compiled
from edgeinfer.kernels import defs

_IMPORTED = re.compile(r"^from edgeinfer\.kernels\.defs(?:\.(\w+)| import (\w+))", re.MULTILINE)


def test_kernels_are_kept_by_all_that_they_are_written_with() -> None:
    """One of these files was removed, and no language model could be converted."""
    (folder,) = defs.__path__
    texts = [path.read_text("utf-8") for path in Path(folder, "llm").glob("*.py")]
    found = {a or b for text in texts for a, b in _IMPORTED.findall(text)} - {"llm"}
    assert found == set(compiled.SHARED)
