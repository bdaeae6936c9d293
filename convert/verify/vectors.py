"""Test vectors: from the user, from a calibration folder, or made up by kind of input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from edgeinfer.types import Array, Feeds, Preprocessing, TensorSpec

if TYPE_CHECKING:
    from edgeinfer.convert.verify.oracles import Oracles

UserData = Path | Sequence[Feeds]
"""An ``.npz``, a folder of ``.npz`` files, or the feeds themselves."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One set of inputs.

    Attributes:
        feeds: by input name, all inputs.
        origin: ``user:<file>``, ``calibration:<file>`` or ``synthetic:<what>``.
        edge: an extreme no recipe below fp32 promises to survive; judged at fp32 only.
    """

    feeds: dict[str, Array]
    origin: str
    edge: bool = False


def make_vectors(
    model: ir.Model,
    inputs: Sequence[TensorSpec],
    *,
    oracles: Oracles,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    user_data: UserData | None = None,
    calibration: Path | None = None,
    limit_bytes: int = 32 << 20,
) -> list[Vector]:
    """Gather or make the inputs that every variant is checked on.

    User data comes first, then the calibration folder, then what is made up from the kind of each
    input. Every dynamic axis is given two sizes at least; sizes are found by trial on oracle A.

    Args:
        model: the source model as read.
        inputs: its inputs, without those that have an initializer.
        oracles: opened on the same model.
        preprocessing: how an image or a recording becomes an input, by input name.
        user_data: feeds to use as they are.
        calibration: folder of pictures or recordings; needs ``preprocessing``.
        limit_bytes: stop adding made-up vectors when their inputs hold this much.

    Raises:
        InputError: user data does not fit the model.
        UsageError: the calibration folder cannot be used, or no input sizes could be found that
            the model runs with (the message asks for ``--input-shape`` or data).
    """
    raise NotImplementedError
