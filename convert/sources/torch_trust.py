"""What a ``.pt2`` file holds that only Python can read, and that may run anything when it is read.

``torch.export.load`` unpickles constants and weights that the file marks so, resolves names of
functions by walking attributes from ``torch``, evaluates sizes as Python text, and maps libraries.
So the file is looked at first, through the reader that the loader itself uses, and only a program
of a model's operators over plain tensors goes on.

Source: torch/export/pt2_archive/_package.py and torch/_export/serde/serialize.py, PyTorch 2.13.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgeinfer.bounded import parse_json
from edgeinfer.convert.sources.torch_expressions import is_size
from edgeinfer.convert.sources.torch_operators import is_let_through, strangers

MOST_JSON = 1 << 28
"""Bytes of one description in the file."""

_MOST_LISTED = 5
_PROGRAM = "models/model.json"
_FOLDERS = ("data/", "models/")
_CONFIGS = ("data/weights/", "data/constants/")
_MOST_SPREAD = 1 << 26
"""Bytes that weights may have beyond those in the file: one element can stand for many."""

_MOST_NAMES = 8
"""Names of one weight that are a model's own, as of embeddings that are tied."""

_WIDTHS = {
    **{3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16},
    **{13: 2, 28: 2, 34: 4, 35: 8},
}
"""Bytes of an element by its number in torch/_export/serde/schema.py; 1 of all others."""


def suspicions(path: Path) -> list[str]:
    """Return what in a file may run code when it is loaded; empty where nothing may.

    Raises:
        Exception: whatever PyTorch's reader raises on a damaged file.
    """
    import torch

    reader = torch._C.PyTorchFileReader(str(path))
    names = [str(name) for name in reader.get_all_records()]
    # A program names the same function many times.
    found = list(dict.fromkeys(_all(names, reader.get_record, _sizes(reader))))
    more = [f"{len(found) - _MOST_LISTED} more"] if len(found) > _MOST_LISTED else []
    return [*found[:_MOST_LISTED], *more]


def _sizes(reader: Any) -> Callable[[str], int]:
    """Return what tells the bytes of a member; before 2.12 a reader tells them by reading it."""
    return getattr(reader, "get_record_size", None) or (lambda name: len(reader.get_record(name)))


def _all(
    names: list[str], record: Callable[[str], bytes], size: Callable[[str], int]
) -> Iterator[str]:
    if "archive_format" not in names:
        yield "weights as a pickle, as PyTorch before 2.8 wrote them"
        return
    if _PROGRAM not in names:
        yield f"no program of this form ({_PROGRAM})"
    known = Counter(name.lower() for name in names)
    for name in names:
        # PyTorch's reader finds a member also by a name in other cases.
        low = name.lower()
        if known[low] > 1 or (low.startswith(_FOLDERS) and not name.startswith(_FOLDERS)):
            yield f"a member by two names ({name[:80]})"
    for name in names:
        if "aotinductor" in name.lower():
            yield f"a compiled library ({name})"
        elif name.startswith(_CONFIGS) and name.endswith(".pt"):
            yield f"a pickle of weights ({name})"
        elif name.startswith(_CONFIGS) and name.endswith(".json"):
            config = _parsed(record(name))
            yield from _payloads(name, config)
            _check_spread(name, config, {path: size(path) for path in _files(name, config, names)})
        elif name.startswith("models/"):
            yield from _program(name, _parsed(record(name)))
        elif name.startswith("data/sample_inputs/"):
            yield from _samples(name, record(name))


def _parsed(raw: bytes) -> Any:
    if len(raw) > MOST_JSON:
        raise ValueError(f"a description of more than {MOST_JSON >> 20} MiB")
    return parse_json(raw)


def _payloads(name: str, config: Any) -> Iterator[str]:
    for key, payload in config["config"].items():
        file = payload["path_name"]
        if payload.get("use_pickle") or not re.fullmatch(r"(?:weight|tensor)_\d+", str(file)):
            yield f"{str(key)[:60]!r} as a pickle or an object ({name})"


def _files(name: str, config: Any, names: list[str]) -> set[str]:
    folder = name.rpartition("/")[0]
    return {f"{folder}/{payload['path_name']}" for payload in config["config"].values()} & {*names}


def _check_spread(name: str, config: Any, stored: dict[str, int]) -> None:
    """Refuse weights whose sizes make far more of what the file holds.

    Raises:
        ValueError: says which one, and by how much.
    """
    spread = 0
    names: Counter[str] = Counter()
    for key, payload in config["config"].items():
        meta, file = payload.get("tensor_meta"), f"{name.rpartition('/')[0]}/{payload['path_name']}"
        if meta is None or file not in stored:
            continue
        sizes = [int(size["as_int"]) for size in meta["sizes"]]
        wanted = math.prod(sizes) * _WIDTHS.get(meta["dtype"], 1)
        names[file] += 1
        if names[file] > _MOST_NAMES:
            # Each becomes a weight of its own.
            spread += wanted
        spread += max(0, wanted - stored[file])
        if spread > _MOST_SPREAD and names[file] > _MOST_NAMES:
            raise ValueError(
                f"weight {str(key)[:60]!r} is one of more than {_MOST_NAMES} names of the same "
                f"{stored[file]} bytes; give each its own with .clone() before the export"
            )
        if spread > _MOST_SPREAD:
            raise ValueError(
                f"weight {str(key)[:60]!r} has the sizes {sizes[:8]}, {wanted} bytes, of which the "
                f"file holds {stored[file]}; make it whole with .contiguous() before the export"
            )


def _samples(name: str, raw: bytes) -> Iterator[str]:
    import torch

    try:
        torch.load(io.BytesIO(raw), weights_only=True)
    # The restricted reader raises whatever it meets.
    except Exception:
        yield f"example inputs that are not tensors alone ({name})"


def _program(name: str, data: Any) -> Iterator[str]:
    """Walk a description; its keys say which texts are resolved or evaluated."""
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            is_call = "target" in item and isinstance(item.get("inputs"), list)
            if is_call:
                yield from (f"{found} ({name})" for found in strangers(item))
            for key, value in item.items():
                if not isinstance(value, str):
                    waiting.append(value)
                elif not (is_call and key == "target"):
                    yield from _text(name, key, value)
        elif isinstance(item, list):
            waiting.extend(item)


def _text(name: str, key: str, value: str) -> Iterator[str]:
    if key in ("target", "as_operator"):
        # Attributes of a module have targets too; those are names of weights.
        if value.startswith(("torch", "_operator", "math", "#")) and not is_let_through(value):
            yield f"the function {value[:80]!r} ({name})"
    elif key == "expr_str":
        if not is_size(value):
            yield f"the expression {value[:80]!r} ({name})"
    elif key in ("in_spec", "out_spec") and (odd := _odd_container(value)):
        yield f"the container {odd} ({name})"


def _odd_container(text: str) -> str:
    """Say which container of inputs or outputs is not plain; read as ``treespec_loads`` does."""
    try:
        protocol, tree = parse_json(text)
        waiting = [tree]
        while waiting:
            item = waiting.pop()
            if protocol != 1 or item.keys() != {"type", "context", "children_spec"}:
                return f"{text[:80]!r}, which is unknown"
            kind, context, children = item["type"], item["context"], item["children_spec"]
            if not _is_plain(kind, context, children):
                return f"{kind!r} of {str(context)[:80]!r}"
            waiting.extend(children)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return f"{text[:80]!r}, which cannot be read"
    return ""


def _is_plain(kind: Any, context: Any, children: Any) -> bool:
    """Whether PyTorch makes a container of plain keys, and looks up nothing else than its type.

    A context is a text of its own, in which PyTorch takes objects for names to import.
    """
    if kind is None:
        return context is None and children == []
    if not isinstance(children, list) or not isinstance(context, str):
        return False
    if kind == "collections.namedtuple":
        # A name among those that the process has registered; nothing is imported for it.
        return True
    held = parse_json(context)
    if kind in ("builtins.tuple", "builtins.list"):
        return held is None
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = held if isinstance(held, list) else [held]
        return all(key is None or isinstance(key, str | int | float) for key in keys)
    return False
