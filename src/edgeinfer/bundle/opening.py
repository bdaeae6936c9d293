"""Options of opening a bundle: whom to trust, and whether its machine code may run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from edgeinfer.options import Section, Value, about, default_of, option, options_of
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.bundle.trust import Native

    StrPath = str | os.PathLike[str]

TRUST = Section("Trust", "edgeinfer run model.edge photo.jpg --trusted key.pub")
_FILE = Value("FILE")


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Options that everything has that opens a bundle."""

    trusted: Sequence[StrPath] = option(
        (),
        "Public key (PEM file), one of which must have signed the bundle. Where none is given, "
        "those that EDGEINFER_TRUSTED_KEYS lists, if it is set.",
        TRUST,
        value=Value("PUBLIC", multiple=True),
    )
    require_signature: bool = option(
        False,
        "Open nothing that no trusted key signed. Also where no key is known. Keys that are "
        "given or listed are always required.",
        TRUST,
    )
    key: StrPath | None = option(
        None,
        "File with the key of an encrypted bundle. None takes what EDGEINFER_BUNDLE_KEY or "
        "EDGEINFER_BUNDLE_KEY_FILE has.",
    )
    native: Native | None = option(
        None,
        "Whether machine code in the bundle may run, with everything this user may do. "
        "``allow``, ``deny``, or ``auto``: where a trusted key signed it or this machine made "
        "it. What may not is left out with a note, and the bundle's data run. None takes what "
        "EDGEINFER_NATIVE says, else ``auto``.",
    )
    expect_name: str | None = option(
        None,
        "Open no model of another name. Whoever signed it.",
        TRUST,
        value=Value("NAME"),
    )
    protect_rollback: bool = option(
        False,
        "Open no version older than one opened here. One that was signed without a counter "
        "(``edgeinfer sign --counter``) is refused too.",
        TRUST,
    )
    signers: int = option(
        1, "How many trusted keys must have signed it.", TRUST, value=Value(kind="count")
    )
    revoked: StrPath | None = option(
        None,
        "Digests and key ids that are no longer trusted, one a line. None takes the file that "
        "EDGEINFER_REVOKED names, if it is set.",
        TRUST,
        value=_FILE,
    )
    signature: StrPath | None = option(
        None,
        "Signature by OpenSSF's model-signing; default BUNDLE.sig. A trusted key of an elliptic "
        "curve has to have made it.",
        TRUST,
        value=_FILE,
    )


@dataclass(frozen=True, kw_only=True)
class BundleOptions(Opening):
    """The arguments of ``Bundle.open``."""

    path: StrPath = field(kw_only=False, metadata=about("Path of the bundle."))
    verify: bool | Literal["later"] = option(
        True,
        "Compare every file with its hash now. Otherwise each one at its first use, and with "
        "``later`` the rest by ``check``, so that no file is read twice.",
    )


OPENINGS = tuple(options_of(Opening))
"""Names of the options that ``load``, pipelines and commands pass on."""


def openings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of ``load`` that opening a bundle takes too."""
    return {name: options[name] for name in OPENINGS if name in options}


def said(opening: Mapping[str, Any]) -> list[str]:
    """Name the options that are not what they are where nobody says."""
    return [name for name, value in opening.items() if value not in ((), default_of(Opening, name))]
