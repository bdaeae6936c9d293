"""What attention of one layer consists of."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu
from edgeinfer.kernels.defs.llm.cache import Pages
from edgeinfer.records import dataclass

POSITIONS = 1 << 20
"""Of a sequence, at most."""

TILES = (4, 2, 1)
"""Tokens of a tile of attention that there may be."""

_LANES = 16


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention of one layer.

    Attributes:
        pages: the cache.
        heads: Heads of queries.
        scale: Scale of scores.
        window: tokens that each sees, itself included; 0 for all before it.
        cap: scores are bent to within plus and minus it; 0 for none.
        rotated: elements of a head that are rotated by position; 0 for none.
        epsilon: Epsilon of the norms of queries and keys by head; None for none.
    """

    pages: Pages
    heads: int
    scale: float
    window: int = 0
    cap: float = 0.0
    rotated: int = 0
    epsilon: float | None = None

    @property
    def label(self) -> str:
        """Its name in names of kernels."""
        p = self.pages
        sizes = f"{self.heads}_{p.heads}x{p.size}_{p.kind}_t{self.rotated}_s{self.scale:.6g}"
        more = f"_w{self.window}" if self.window else ""
        more += f"_cap{self.cap:g}" if self.cap else ""
        more += f"_n{self.epsilon:.3g}" if self.epsilon is not None else ""
        return (sizes + more).replace(".", "p").replace("-", "m").replace("+", "")

    def together(self, cpu: KernelCpu) -> int:
        """Heads of queries that read a page together."""
        group = self.heads // self.pages.heads
        # Of integers each score is two sums, for some tokens of a page at a time.
        each = 2 if self.pages.quantized else max(1, _LANES // cpu.lanes)
        most = (cpu.registers - 4) // each
        return next(h for h in range(min(group, most), 0, -1) if group % h == 0)

    def strands(self, cpu: KernelCpu) -> int:
        """Sums that a score is made of: one would wait for its last step every time."""
        vectors = max(1, _LANES // cpu.lanes)
        if self.pages.quantized:
            return 1
        return 2 if 2 * self.together(cpu) * vectors <= cpu.registers - 4 else 1

    def tiles(self, cpu: KernelCpu) -> tuple[int, ...]:
        """Numbers of tokens of one sequence that may read a page together, the largest first."""
        vectors = 2 if self.pages.quantized else max(1, _LANES // cpu.lanes)
        each = self.together(cpu) * self.strands(cpu) * vectors
        return tuple(n for n in TILES if n == 1 or n * each <= cpu.registers - 4)


def page_of(named: dict[str, Buffer], owner: Expr, place: Expr) -> Expr:
    """The page that a sequence has at a place of its table."""
    return T.BufferLoad(named["table"], [owner * T.BufferLoad(named["span"], [3]) + place])
