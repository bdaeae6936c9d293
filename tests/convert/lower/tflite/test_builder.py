"""The moves that lowerings share."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, broadcast


def codes(g: Builder) -> list[str]:
    return [op.code for op in g.ops]


def test_broadcast_keeps_unknown_sizes_apart() -> None:
    assert broadcast((2, 1), (3,)) == (2, 3)
    assert broadcast((None, 1), (1, 4)) == (None, 4)
    assert broadcast((None,), (5,)) == (5,)
    with pytest.raises(Refusal, match="do not broadcast"):
        broadcast((2,), (3,))


def test_constants_are_moved_at_once_and_not_copied() -> None:
    g = Builder()
    w = g.const(np.arange(6, dtype=np.float32).reshape(2, 3))
    moved = g.transpose(w, [1, 0])
    assert codes(g) == []
    assert moved.shape == (3, 2)
    assert np.shares_memory(moved.value, w.value)


def test_moving_axes_of_size_one_is_a_reshape() -> None:
    g = Builder()
    g.transpose(g.tensor((1, 1, 8, 4), np.float32), [0, 2, 3, 1])
    g.transpose(g.tensor((None, 1, 8, 4), np.float32), [0, 2, 3, 1])
    assert codes(g) == ["RESHAPE", "RESHAPE"]
    assert g.ops[1].inputs[1] is not None
    assert g.ops[1].inputs[1].value.tolist() == [-1, 8, 4, 1]


def test_one_open_size_follows_from_the_others() -> None:
    g = Builder()
    x = g.tensor((None, 2, 3), np.float32)
    assert g.reshape(x, [g.extent(x, 0), 6]).shape == (None, 6)
    assert g.ops[-1].options == {"new_shape": [-1, 6]}


def test_two_open_sizes_are_read_at_run_time() -> None:
    g = Builder()
    x = g.tensor((None, None, 3, 2), np.float32)
    y = g.reshape(x, [g.extent(x, 0), g.extent(x, 1), 6])
    assert y.shape == (None, None, 6)
    assert codes(g) == ["SHAPE", "GATHER", "SHAPE", "GATHER", "PACK", "RESHAPE"]


def test_minus_one_is_worked_out_where_it_can_be() -> None:
    g = Builder()
    assert g.reshape(g.tensor((4, 6), np.float32), [-1, 3]).shape == (8, 3)


def test_axes_of_size_one_come_and_go() -> None:
    g = Builder()
    x = g.tensor((None, None, 4), np.float32)
    wide = g.insert_axis(x, 1)
    assert wide.shape == (None, 1, None, 4)
    assert g.drop_axis(wide, 1).shape == x.shape
    assert codes(g) == ["EXPAND_DIMS", "SQUEEZE"]


def test_slices_know_their_length() -> None:
    g = Builder()
    x = g.tensor((10, None), np.float32)
    assert g.slice(x, [1, 0], [-1, None], [2, 1]).shape == (4, None)
    assert g.slice(x, [-1, 0], [None, None], [-3, 1]).shape == (4, None)


def test_parts_are_split_evenly_or_by_size() -> None:
    g = Builder()
    x = g.tensor((2, 6), np.float32)
    assert [p.shape for p in g.split(x, [3, 3], 1)] == [(2, 3), (2, 3)]
    assert [p.shape for p in g.split(x, [2, 4], 1)] == [(2, 2), (2, 4)]
    assert g.split(x, [6], 1) == [x]
    assert codes(g) == ["SPLIT", "SPLIT_V"]


def test_a_plain_number_takes_the_other_type() -> None:
    g = Builder()
    x = g.tensor((2,), np.int64)
    assert g.binary("ADD", x, 1).dtype == np.int64
    assert g.binary("LESS", x, 1).dtype == np.bool_
