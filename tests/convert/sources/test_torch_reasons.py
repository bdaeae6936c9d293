"""What an export from PyTorch fails for: the operator, the layer and the line are named."""

from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError

torch = pytest.importorskip("torch")


class Inner(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return torch.linalg.matrix_exp(x) + 1  # the line


class Deep(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Identity(), Inner()])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Projected(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.nn.LSTM(5, 5, batch_first=True)
        self.deep = torch.nn.LSTM(5, 6, num_layers=2, proj_size=3, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.deep(self.plain(x)[0])[0]  # the line


class Packed(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, n: Any) -> Any:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, n, True, enforce_sorted=False)
        found, _ = self.layer(packed)  # the line
        return torch.nn.utils.rnn.pad_packed_sequence(found, batch_first=True)[0]


def _line(kind: type) -> str:
    import inspect

    lines, start = inspect.getsourcelines(kind)
    return rf"{__file__}, line {start + [('# the line' in text) for text in lines].index(True)}"


X, N = torch.ones(2, 4, 5), torch.tensor([4, 2])


@pytest.mark.parametrize(
    ("make", "examples", "words", "kind"),
    [
        (Deep, (torch.eye(3) + 1,), r"torch's linalg_matrix_exp .*\(at blocks\.1: ", Inner),
        (
            Projected,
            (X,),
            r"\(at deep: .*LSTM with proj_size has no form in ONNX; leave",
            Projected,
        ),
        (lambda: Packed(torch.nn.LSTM(5, 6, batch_first=True)), (X, N), "packed .at", Packed),
        (lambda: Packed(torch.nn.GRU(5, 6, batch_first=True)), (X, N), "packed .at", Packed),
    ],
)
def test_a_refusal_names_operator_layer_and_line(
    make: Any, examples: tuple[Any, ...], words: str, kind: type
) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read(make().eval(), example_inputs=examples)
    assert _line(kind) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_a_refused_program_names_the_layer() -> None:
    program = torch.export.export(Projected().eval(), (X,))
    with pytest.raises(SourceError, match=r"\(at deep: .*LSTM with proj_size has no form"):
        read(program)
