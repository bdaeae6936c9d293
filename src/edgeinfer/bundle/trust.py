"""How far a bundle is trusted: its data is checked by its reader, its machine code is not.

Three levels of what is handed to edgeinfer:

data
    models in ONNX, OpenVINO's IR, TFLite, Core ML; vectors, records, reports. Engines read them.
native
    machine code: what TVM compiled, regions of ONNX graphs, ``code/*.so``. Whoever runs it does
    what its author wants, with everything this user may do.
source
    Python: ``file.py:callable``, pickles inside a ``.pt2``. Only the converter meets it.

Native parts run where a trusted key signed the bundle, where this machine made it, or where the
caller says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

from edgeinfer.bundle.made import is_made_here
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.bundle.manifest import FileRecord, Manifest, Variant

Level = Literal["data", "native"]
Native = Literal["auto", "allow", "deny"]
"""``auto`` asks for a signature or for the list of what was made here."""

ENV = "EDGEINFER_NATIVE"

NATIVE_FORMATS = frozenset({"tvm", "onnx_tvm", "llm"})
"""Formats of artifacts that are machine code."""

_NATIVE_NAME = re.compile(
    r"\.(?:so(?:\.\d+)*|dylib|dll|ptx|cubin|fatbin|plan|engine)\Z", re.I | re.A
)
"""Ends of names of files that are machine code, whatever the format of the variant that lists them:
libraries, and what runs on a GPU as it is."""

NATIVE_FOLDER = "code/"
"""Files below it are machine code."""

PAGE = "report.html"
"""A page that whoever made the bundle wrote: a browser runs what is in it."""

_RUNS_OPENED = re.compile(
    r"\.(?:[sx]?html?|xht|xul|mht(?:ml)?|maff|webarchive|svgz?|xml|xslt?|[cm]?js|pdf|hta|chm|swf|jar|"
    r"jnlp|py[cwz]?|pyzw|ipynb|(?:ba|c|z|k|fi)?sh|run|appimage|command|tool|terminal|workflow|scpt|"
    r"applescript|pkg|dmg|app|webloc|inetloc|fileloc|desktop|lnk|url|[a-z]+-ms|application|gadget|"
    r"exe|com|pif|cpl|scr|ms[cip]|bat|cmd|ps1(?:xml)?|psc1|vb[es]|jse|ws[cfh]|reg|scf|inf|iso|"
    r"(?:doc|xls|ppt)[mx]?|slk|iqy)\Z",
    re.I | re.A,
)
"""Ends of names of files that run what is in them where somebody opens them."""

_BESIDE = re.compile(
    r"(?:/[^./]*|\.(?:txt|json|model|spm|vocab|tsv|csv|bin|np[yz]))\Z", re.I | re.A
)
"""Ends of names of what stands beside variants and is read: vocabularies, tables, reports."""

HINT = (
    "sign it and give the key (trusted=, --trusted), or trust whoever made it "
    "(native='allow', --allow-native, EDGEINFER_NATIVE=allow)"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether machine code of a bundle may run.

    Attributes:
        allowed: whether it may.
        why: the reason, either way.
    """

    allowed: bool
    why: str


def policy_of(given: Native | None) -> Native:
    """Return what the caller says, else what the environment does.

    Raises:
        UsageError: it is no policy.
    """
    where, value = ("native", given) if given else (ENV, os.environ.get(ENV) or "auto")
    for policy in get_args(Native):
        if value == policy:
            return policy  # type: ignore[no-any-return]
    known = ", ".join(get_args(Native))
    raise UsageError(f"{where}: expected one of {known}, received {value!r}")


def judge(policy: Native, signed_by: str, digest: str) -> Verdict:
    """Say whether machine code may run.

    Args:
        policy: what the caller wants.
        signed_by: the trusted key that signed the bundle; empty where none did.
        digest: SHA-256 of its manifest.
    """
    if policy == "deny":
        return Verdict(False, "the caller runs none")
    if policy == "allow":
        return Verdict(True, "the caller trusts whoever made it")
    if signed_by:
        return Verdict(True, f"signed by trusted key {signed_by}")
    if is_made_here(digest):
        return Verdict(True, "made on this machine")
    return Verdict(False, "no trusted key signed the bundle and this machine did not make it")


def level_of(variant: Variant) -> Level:
    """Return a variant's level."""
    # A library makes any format native, one of a plugin too.
    has_library = any(_NATIVE_NAME.search(file.path) for file in variant.files)
    return "native" if variant.format in NATIVE_FORMATS or has_library else "data"


def runs_opened(path: str, format: str = "", graph: str = "") -> bool:
    """Whether a file may run what is in it where somebody opens it: a page, a program.

    Args:
        path: in the bundle.
        format: Format of the variant that lists it, whose libraries have a level of their own.
            Empty for what stands beside variants: of that only known texts and tables do not.
        graph: Path of the variant's first file; OpenVINO describes graphs in XML.
    """
    if not format:
        return not _BESIDE.search(f"/{path}")
    is_graph = format == "openvino_ir" and path == graph and path.lower().endswith(".xml")
    return not is_graph and _RUNS_OPENED.search(path) is not None


def native_files(manifest: Manifest) -> Iterator[FileRecord]:
    """Yield the files of a bundle that are machine code, or lie next to it as a part of it."""
    for variant in manifest.variants:
        if level_of(variant) == "native":
            yield from variant.files
    yield from (f for f in manifest.extra_files if f.path.startswith(NATIVE_FOLDER))


def native_parts(manifest: Manifest) -> tuple[str, ...]:
    """Name what is machine code: ids of variants and paths of libraries."""
    variants = [v.id for v in manifest.variants if level_of(v) == "native"]
    return (*variants, *(f.path for f in manifest.extra_files if f.path.startswith(NATIVE_FOLDER)))
