"""Results as data."""

import json

import numpy as np
import pytest

from edgeinfer.results import Detection, Mask, as_json


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0, 0], [0, 0]], [4]),
        ([[1, 1], [1, 1]], [0, 4]),
        ([[0, 1], [1, 0]], [1, 2, 1]),
        ([[1, 0], [0, 1]], [0, 1, 2, 1]),
        ([], [0]),
    ],
)
def test_runs_of_a_mask_are_in_turns(rows: list[list[int]], expected: list[int]) -> None:
    assert Mask(0, 0, np.array(rows, bool)).runs() == expected


def test_a_mask_lies_in_the_whole_picture() -> None:
    whole = Mask(2, 1, np.ones((2, 3), bool)).whole(6, 4)
    assert whole.sum() == 6
    assert whole[1:3, 2:5].all()


def test_a_detection_is_json() -> None:
    found = Detection((0.0, 1.0, 2.0, 3.0), 0.5, 1, "cat", mask=Mask(0, 1, np.eye(2, dtype=bool)))
    told = json.loads(json.dumps(as_json(found)))
    assert told["mask"] == {"left": 0, "top": 1, "size": [2, 2], "runs": [0, 1, 2, 1]}
    assert (told["kind"], told["box"], told["track"]) == ("object", [0.0, 1.0, 2.0, 3.0], None)
