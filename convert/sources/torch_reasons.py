"""What an export from PyTorch failed for, in words: the operator, the layer, the line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from edgeinfer.convert.sources.torch_compare import reason


def release() -> tuple[int, ...]:
    """Return the first two numbers of the installed PyTorch's version."""
    import torch

    return tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])


_PLACE = re.compile(r'File "([^"<]+)", line (\d+), in ')
_OWN = Path(__file__).parents[2]


def explained(error: BaseException) -> str:
    """Say what an export failed for: the trace, or an operator that has no form in ONNX."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__
    why = reason(error)
    where = _where(chain)
    kinds = {type(e).__name__ for e in chain}
    if any(map(_of_packed, _frames(chain))) or "_pack_padded_sequence" in why:
        return (
            f"torch.export cannot trace sequences that are packed{where}; leave out "
            "pack_padded_sequence: give the layer the padded batch, and use of each row what is "
            "within its length"
        )
    if "TorchExportError" in kinds:
        is_older = release() < (2, 13)
        newer = "; PyTorch 2.13 traces recurrent layers of any length" if is_older else ""
        return (
            f"torch.export cannot trace it: {why}{where}; rewrite that part for torch.export "
            f"(fixed sizes, torch.where or torch.cond for data-dependent branches){newer}"
        )
    missing = re.search(r"<OpOverload\(op='([\w.:]+)', overload='(\w+)'\)>", why)
    if missing is not None:
        what = missing[1].replace("aten.", "torch's ")
        return (
            f"PyTorch's exporter has no form in ONNX for {what} ({missing[2]}){where}; compute it "
            "with other operators in forward()"
        )
    return f"PyTorch's exporter fails{where}, after torch.export has traced it: {why}"


def _frames(chain: Sequence[BaseException]) -> Iterator[FrameType]:
    """Yield the frames that errors went through, the deepest error's last frame first."""
    for error in reversed(chain):
        yield from reversed([frame for frame, _ in traceback.walk_tb(error.__traceback__)])


def _of_packed(frame: FrameType) -> bool:
    from torch.nn.utils import rnn

    if frame.f_code.co_filename == rnn.__file__:
        return True
    return isinstance(frame.f_locals.get("orig_input"), rnn.PackedSequence)


def _where(chain: Sequence[BaseException]) -> str:
    """Say which layer and which line of the user's code an error is about; nothing if unknown."""
    nodes = (frame.f_locals.get("node") for frame in _frames(chain))
    metas = (getattr(node, "meta", None) for node in nodes)
    meta: dict[str, Any] = next((found for found in metas if isinstance(found, dict)), {})
    texts = [str(meta.get("stack_trace") or ""), *map(str, reversed(chain))]
    frames = [place for text in texts for place in reversed(_PLACE.findall(text))]
    frames += [
        (frame.f_code.co_filename, line)
        for error in reversed(chain)
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__)))
    ]
    found = [_layer(meta)] if _layer(meta) else []
    found += [f"{file}, line {line}" for file, line in frames if _is_users(file)][:1]
    return f" (at {': '.join(found)})" if found else ""


def _layer(meta: dict[str, Any]) -> str:
    """The innermost layer that an operator is of, as ``named_modules`` calls it."""
    stack = list((meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _is_users(file: str) -> bool:
    import onnxscript
    import torch

    folders = [_OWN, *(Path(str(part.__file__)).parent for part in (torch, onnxscript))]
    return Path(file).is_file() and not any(Path(file).is_relative_to(f) for f in folders)
