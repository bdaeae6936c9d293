"""Which processor this is, and whether two are of one kind."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.machine.cpu import usual_name

_CPUINFO = Path("/proc/cpuinfo")


def name() -> str:
    """Return this processor's name, as Linux tells it."""
    try:
        text = _CPUINFO.read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    return named(text) or usual_name()


def named(cpuinfo: str) -> str:
    """Return a processor's name from Linux's description of it; empty if it gives none."""
    keys = dict(
        reversed(
            [(k.strip(), v.strip()) for k, _, v in (x.partition(":") for x in cpuinfo.split("\n"))]
        )
    )
    if title := keys.get("model name"):
        family, model = keys.get("cpu family", ""), keys.get("model", "")
        return f"{title}, family {family} model {model}"
    return f"{keys.get('CPU implementer', '')} {keys.get('CPU part', '')}".strip()


def is_kin(one: str, other: str) -> bool:
    """Whether two names, as ``name`` gives them, are of one design: maker, family and model.

    Names without a family are of one design if they are the same.
    """
    return _design(one) == _design(other)


def _design(title: str) -> tuple[str, str]:
    words, found, design = title.rpartition(", family ")
    # Clock and line of the product, behind the maker's name, change no kernel.
    return (words.split()[0] if words.split() else "", design) if found else (title, "")
