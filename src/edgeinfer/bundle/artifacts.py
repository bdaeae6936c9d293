"""Artifacts out of their bundle: the plain files that a phone or another tool opens."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.formats import FOLDERS, SUFFIXES, format_of
from edgeinfer.bundle.manifest import FileRecord, Manifest, Variant
from edgeinfer.bundle.rules import MANIFEST_NAME
from edgeinfer.bundle.staging import Staging
from edgeinfer.bundle.trust import PAGE, runs_opened
from edgeinfer.bundle.writer import BundleWriter, sync_tree, writing
from edgeinfer.errors import BundleError, OutputError, UsageError
from edgeinfer.records import dataclass

_STEM = "model"
_PIPELINE = "pipeline/"
_REPORTS = ("report.json", PAGE)
_WEIGHTS = {"openvino_ir": ".bin"}
"""What OpenVINO's IR has its weights in, next to it and under the same name."""


class ArtifactWriter(BundleWriter):
    """Builds a bundle as ``BundleWriter`` does and writes one artifact of it instead.

    The artifact takes the output's name. Its report and the manifest lie next to it, under
    ``<output>.report.json``, ``<output>.report.html`` and ``<output>.manifest.json``, so that other
    forms of one model have room in the same folder.

    Args:
        output: the artifact to write; its suffix says the format.
        overwrite: replace what is there under these names.

    Attributes:
        files: what was written, the artifact first.

    Raises:
        UsageError: one of the names is taken, or is of something else.
        OutputError: the folder is missing or cannot be written.
    """

    def _check_free(self, overwrite: bool) -> None:
        format = format_of(self.output)
        if self.output.is_symlink() or self.output.exists():
            of_kind = self.output.is_dir() if format in FOLDERS else self.output.is_file()
            if self.output.is_symlink() or not of_kind:
                raise UsageError(
                    f"{self.output}: is no {SUFFIXES[format]} artifact; choose another output"
                )
        weights = self.output.with_suffix(_WEIGHTS.get(format, self.output.suffix))
        if weights != self.output and weights.exists() and not self.output.exists():
            # Somebody else's weights, with or without leave to overwrite.
            raise UsageError(f"{weights}: exists and is of something else; choose another output")
        _refuse_taken(
            (self.output, *(self._beside(n) for n in (*_REPORTS, MANIFEST_NAME))), overwrite
        )

    def _beside(self, name: str) -> Path:
        return self.output.with_name(f"{self.output.name}.{name}")

    def _place(self, manifest: Manifest) -> None:
        contents = {v.files for v in manifest.variants}
        if len(contents) != 1:
            ids = ", ".join(v.id for v in manifest.variants)
            raise UsageError(f"{self.output}: one artifact was requested, and there are {ids}")
        folders = inside(manifest.variants[0])
        sources: dict[str, Path] = {}
        for path, place in folders.items():
            file = self._staging.tree / path
            top = file if len(place.parts) == 1 else file.parents[len(place.parts) - 2]
            sources[place.parts[0]] = top
        moves = []
        for head, source in sources.items():
            name = self._named(head)
            if name.name == head and name != self.output and name.exists():
                # An .onnx file knows its weights by their name: they may be another's.
                raise UsageError(f"{name}: exists, and may be another model's; choose a new folder")
            moves.append((source, name))
        listed = {record.path for record in manifest.extra_files}
        moves += [
            (self._staging.tree / name, self._beside(name))
            for name in (*_REPORTS, MANIFEST_NAME)
            if name in listed or name == MANIFEST_NAME
        ]
        moves.sort(key=lambda move: move[1] == self.output)
        if moves[-1][1] != self.output:
            raise UsageError(f"{self.output}: the artifact has another form: {', '.join(sources)}")
        sync_tree(self._staging.tree)
        self._staging.place_all(moves)
        self.files = (self.output, *(name for _, name in moves[:-1]))

    def _named(self, head: str) -> Path:
        stem, dot, rest = head.partition(".")
        if stem == _STEM and f"{dot}{rest}" == self.output.suffix.lower():
            return self.output
        if stem == _STEM and f"{dot}{rest}" in _WEIGHTS.values():
            return self.output.with_name(f"{self.output.stem}.{rest}")
        return self.output.with_name(head)


def inside(variant: Variant) -> dict[str, PurePosixPath]:
    """Return where the files of a variant lie in its own folder, by their path in the bundle."""
    paths = [PurePosixPath(file.path) for file in variant.files]
    heads = {path.parts[:2] for path in paths}
    own = len(heads) == 1 and all(len(p.parts) > 2 and p.parts[0] == "variants" for p in paths)
    return {str(p): PurePosixPath(*p.parts[2:]) if own else p for p in paths}


@dataclass(frozen=True, slots=True)
class Extracted:
    """A variant that was taken out of its bundle.

    Attributes:
        variant: Variant of the manifest.
        artifact: what to open: a file, or the folder that is a package.
        files: all that was written for it.
        left_out: what was not, as whoever opens it runs it and a stranger made it.
    """

    variant: Variant
    artifact: Path
    files: tuple[Path, ...]
    left_out: tuple[str, ...] = ()


def chosen(
    manifest: Manifest, *, targets: Sequence[str] = (), ids: Sequence[str] = ()
) -> tuple[Variant, ...]:
    """Return the variants of these targets or of these ids; all where neither is given.

    Those whose engine is given a type to compute in are other variants' files, so that they are
    returned by their ids alone.

    Raises:
        UsageError: one of them has no variant; says what there is.
    """
    found = tuple(
        v
        for v in manifest.variants
        if v.id in ids or (not v.computed_in and (not (targets or ids) or v.target in targets))
    )
    lacking = [t for t in targets if t not in {v.target for v in found}]
    lacking += [i for i in ids if i not in {v.id for v in found}]
    if lacking or not found:
        there = ", ".join(f"{v.id} (target {v.target})" for v in manifest.variants) or "none"
        raise UsageError(f"no variant of {', '.join(map(repr, lacking))}; the bundle has {there}")
    return found


def extract(
    bundle: Bundle, folder: Path, variants: Sequence[Variant], *, overwrite: bool = False
) -> tuple[Extracted, ...]:
    """Write the files of variants into a folder, each variant's into one that has its id.

    Next to the artifact lie the manifest, which says how inputs are prepared, the report, and files
    of the pipeline; of a stranger's bundle no pages and programs. All of it appears at once, or
    nothing. Every file is compared with its hash.

    Args:
        bundle: an open one.
        folder: is made where it is missing.
        variants: Variants of the bundle's manifest.
        overwrite: replace folders of these names.

    Raises:
        UsageError: one is there already.
        BundleError: a file is altered.
        OutputError: the folder cannot be written.
    """
    names = {v.id: folder / v.id for v in variants}
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder")
    if not folder.parent.is_dir():
        raise OutputError(f"{folder}: the folder {folder.parent} does not exist")
    _refuse_taken(names.values(), overwrite)
    new = not folder.exists()
    with writing(folder / "x"):
        if new:
            folder.mkdir()
        try:
            staging = Staging(folder / "extract")
            try:
                found = tuple(_extracted(bundle, v, staging.tree, names[v.id]) for v in variants)
                sync_tree(staging.tree)
                staging.place_all([(staging.tree / id, name) for id, name in names.items()])
            finally:
                staging.remove()
        except BaseException:
            if new:
                with suppress(OSError):
                    folder.rmdir()
            raise
    return found


def _extracted(bundle: Bundle, variant: Variant, tree: Path, place: Path) -> Extracted:
    manifest = bundle.manifest
    records = {record.path: record for record in variant.files}
    files: dict[PurePosixPath, FileRecord] = {}
    wanted = [(where, records[path], variant.format) for path, where in inside(variant).items()]
    wanted += [
        (PurePosixPath(f.path), f, "")
        for f in manifest.extra_files
        if f.path in _REPORTS or f.path.startswith(_PIPELINE)
    ]
    left: list[str] = []
    for where, record, format in wanted:
        if not bundle.native.allowed and runs_opened(record.path, format, variant.files[0].path):
            left.append(str(where))
            continue
        if str(where) == MANIFEST_NAME or files.setdefault(where, record) != record:
            raise BundleError(f"{bundle.location}: {variant.id}: two of its files would be {where}")
    for where, record in files.items():
        target = tree / variant.id / where
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            bundle.copy(record, out)
    (tree / variant.id / MANIFEST_NAME).write_bytes(bundle.manifest_bytes())
    first = inside(variant)[variant.files[0].path]
    artifact = first.parts[0] if variant.format in FOLDERS else str(first)
    written = (*files, PurePosixPath(MANIFEST_NAME))
    return Extracted(variant, place / artifact, tuple(place / w for w in written), tuple(left))


def _refuse_taken(names: Iterable[Path], overwrite: bool) -> None:
    taken = [str(name) for name in names if os.path.lexists(name)]
    if taken and not overwrite:
        raise UsageError(f"{', '.join(taken)}: exists; --overwrite (overwrite=True) replaces it")
