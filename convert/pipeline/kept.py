"""The graph of each stage, kept where the user requested it, also of a conversion that fails."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.errors import OutputError
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(slots=True)
class StageFiles:
    """Writes files that are numbered in the order of the stages; nothing without a folder.

    Attributes:
        folder: that the user named; None where nothing is kept.
        count: files and folders written so far.
    """

    folder: Path | None
    count: int = 0

    def model(self, stage: str, model: ir.Model) -> None:
        """Keep a graph with its weights.

        Raises:
            OutputError: it cannot be written.
        """
        if self.folder is None:
            return
        from edgeinfer.convert.onnx_file import save

        try:
            self.folder.mkdir(exist_ok=True)
            save(model, self.folder / f"{self._number()}-{stage}.onnx")
        except OSError as error:
            raise OutputError(f"--keep {self.folder}: {error.strerror or error}") from error

    def artifact(self, name: str, files: Path) -> None:
        """Keep what a target wrote, as it is.

        Raises:
            OutputError: it cannot be written.
        """
        if self.folder is None:
            return
        try:
            shutil.copytree(files, self.folder / f"{self._number()}-{name}")
        except (OSError, shutil.Error) as error:
            raise OutputError(f"--keep {self.folder}: {error}") from error

    def _number(self) -> int:
        self.count += 1
        return self.count
