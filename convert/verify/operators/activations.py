"""The functions inside recurrent operators, with the numbers that each of them takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_NUMBERS = {
    **dict.fromkeys(("leakyrelu", "thresholdedrelu", "elu"), 1),
    **dict.fromkeys(("affine", "scaledtanh", "hardsigmoid"), 2),
}
"""How many of alpha and beta a function has; others have none."""


def with_numbers(
    names: Iterable[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[tuple[str, float | None, float | None]]:
    """Give each function its alpha and beta; None where the default of the function counts.

    ``activation_alpha`` and ``activation_beta`` list the numbers of those functions only that have
    one, in the order of the functions, both directions in a row (ONNX, LSTM).
    """
    alpha, beta = iter(alphas or ()), iter(betas or ())
    found = []
    for name in names:
        count = _NUMBERS.get(name.lower(), 0)
        first = next(alpha, None) if count else None
        found.append((name, first, next(beta, None) if count > 1 else None))
    return found
