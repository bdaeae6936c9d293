"""The command line of a report asks for the same conversion again."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli.convert import convert
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.convert.pipeline.command import command_of
from edgeinfer.convert.pipeline.request import check_request


def line(model: object = "net.onnx", output: str = "net.edge", **asked: Any) -> str:
    return command_of(check_request(ConvertOptions(model, output, **asked)))


def test_the_least() -> None:
    assert line() == "edgeinfer convert net.onnx -t cpu -o net.edge"


def test_a_model_in_memory_has_no_name() -> None:
    assert line(object()).startswith("edgeinfer convert ... -t cpu")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"targets": ["rpi5", "android"]}, "-t rpi5 -t android"),
        ({"precision": "int8", "calibration": "."}, "--precision static_wi8_ai8"),
        ({"calibration": Path("."), "precision": "auto", "max_drop": 0.02}, "--max-drop 2%"),
        ({"input_shapes": {"x": (1, None, 3)}}, "--input-shape 'x=1,?,3'"),
        ({"input_shapes": {"x": (range(1, 9), 3)}}, "--input-shape x=1..8,3"),
        ({"input_ranges": {"x": (-1, 2.5)}}, "--input-range x=-1:2.5"),
        ({"states": {"h": "hn"}}, "--state h:hn"),
        ({"channels_last": ["x"]}, "--channels-last x"),
        ({"random": "7", "unverified": True}, "--unverified"),
        ({"labels": ("a", "b")}, "--labels ..."),
    ],
)
def test_what_was_asked_for_is_in_the_line_and_the_line_is_understood(
    asked: dict[str, Any], words: str
) -> None:
    told = line(**asked)
    assert words in told
    given = convert.make_context("convert", shlex.split(told)[2:]).params
    assert (given["model"], given["output"]) == ("net.onnx", "net.edge")
