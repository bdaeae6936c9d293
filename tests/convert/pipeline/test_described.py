"""Pipeline files against the model's inputs and outputs."""

import pytest

from edgeinfer.convert.pipeline.described import check_described, head_in_layout, records_for
from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, DetectGrid, DetectRows, Head, Prototypes, ReadText, Segment
from edgeinfer.media import Description
from edgeinfer.types import ConstantInput, ImageInput, Preprocessing, StateInput, TensorSpec

INPUTS = (TensorSpec("x", "float32", (1, 3, 8, 8)), TensorSpec("h", "float32", (1, 4)))
OUTPUTS = (TensorSpec("y", "float32", (1, 3, 8, 8)), TensorSpec("hn", "float32", (1, 4)))
IMAGE = ImageInput(8, 8)


def test_only_what_makes_test_inputs_takes_part_in_the_conversion() -> None:
    given: dict[str, Preprocessing] = {
        "x": IMAGE,
        "h": StateInput("hn"),
        "k": ConstantInput((1.0,)),
    }
    assert records_for(Description(given), {}) == {"x": IMAGE}
    assert records_for(Description(), {"x": IMAGE}) == {"x": IMAGE}
    assert records_for(Description(), {}) == {}
    with pytest.raises(UsageError, match="both describe inputs; give one of them"):
        records_for(Description(given), {"x": IMAGE})


def test_everything_that_does_not_fit_is_named() -> None:
    records: dict[str, Preprocessing] = {"z": IMAGE, "h": StateInput("gone")}
    with pytest.raises(UsageError) as caught:
        check_described(Description(records, Classify()), INPUTS, OUTPUTS)
    message = str(caught.value)
    assert "preprocessing['z']: no input has this name, there are 'x', 'h'" in message
    assert "preprocessing['h'].output: no output is named 'gone'" in message
    assert "head.output: name one of the 2 outputs: 'y', 'hn'" in message


def test_labels_name_every_class_or_none() -> None:
    rows = TensorSpec("y", "float32", ("n", 3))
    label, state = TensorSpec("label", "int64", ("n",)), TensorSpec("hn", "float32", (1, 4))
    for outputs in ((rows,), (label, rows)):
        for head in (None, Classify(output="y")):
            check_described(Description({}, head), INPUTS, outputs, ["a", "b", "c"])
            with pytest.raises(UsageError, match="2 labels for the 3 classes of output 'y'"):
                check_described(Description({}, head), INPUTS, outputs, ["a", "b"])
    # Nobody says which output holds scores, or how many there are.
    one = TensorSpec("y", "float32", (1, 1))
    unknown = TensorSpec("y", "float32", (1, "k"))
    for outputs in ((rows, state), (one,), (unknown,), OUTPUTS):
        check_described(Description(), INPUTS, outputs, ["a", "b"])


def test_files_must_come_along() -> None:
    head = ReadText("c.txt", output="y")
    check_described(Description({}, head, files={"c.txt": b"a"}), INPUTS, OUTPUTS)
    with pytest.raises(UsageError, match=r"head: pipeline/c\.txt is not in extra_files"):
        check_described(Description({}, head), INPUTS, OUTPUTS)


@pytest.mark.parametrize(
    ("head", "last", "first", "expected"),
    [
        (Segment("y"), ["y"], [], Segment("y", channels_last=True)),
        (Segment("y", channels_last=True), [], ["y"], Segment("y")),
        (Segment("y"), ["x"], [], Segment("y")),
        (DetectGrid("y", channels_first=True), ["y"], [], DetectGrid("y")),
        (DetectGrid(), [], ["y"], DetectGrid(channels_first=True)),
        (Classify(), ["y"], [], Classify()),
        (
            DetectGrid("x", extra=Prototypes("y")),
            ["y"],
            ["x"],
            DetectGrid("x", channels_first=True, extra=Prototypes("y", channels_last=True)),
        ),
        (
            DetectRows("x", extra=Prototypes("y", channels_last=True)),
            [],
            ["y"],
            DetectRows("x", extra=Prototypes("y")),
        ),
        (None, ["y"], [], None),
    ],
)
def test_a_head_follows_the_layout(
    head: Head | None, last: list[str], first: list[str], expected: Head | None
) -> None:
    assert head_in_layout(head, OUTPUTS, last, first) == expected
