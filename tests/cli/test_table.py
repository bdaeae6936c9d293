"""Tables on narrow and wide terminals."""

from edgeinfer.cli.output import together
from edgeinfer.cli.table import table

WIDE = table(
    ("variant", ">size", "checked by", ">error", "verdict"),
    [
        ("cpu-openvino_ir-fp32", "1 kB", "openvino", "1e-07", "pass"),
        ("rpi5-tflite-fp32", "2 kB", "litert", "2e-07", "pass, budget widened"),
    ],
)


def test_a_table_that_fits_has_a_line_for_each_row() -> None:
    assert WIDE.lines(80) == [
        "variant               size  checked by  error  verdict",
        "cpu-openvino_ir-fp32  1 kB  openvino    1e-07  pass",
        "rpi5-tflite-fp32      2 kB  litert      2e-07  pass, budget widened",
    ]


def test_text_of_several_words_is_folded_between_them() -> None:
    assert WIDE.lines(60)[-2:] == [
        "rpi5-tflite-fp32      2 kB  litert      2e-07  pass, budget",
        "                                               widened",
    ]


def test_no_name_is_broken_while_columns_can_go_under_their_row() -> None:
    assert WIDE.lines(40) == [
        "variant               size  error",
        "cpu-openvino_ir-fp32  1 kB  1e-07",
        "  checked by: openvino; verdict: pass",
        "rpi5-tflite-fp32      2 kB  2e-07",
        "  checked by: litert; verdict: pass,",
        "  budget widened",
    ]


def test_where_nothing_can_go_names_are_broken() -> None:
    assert table(("name", ">size"), [("abcdefgh", "12")]).lines(8) == [
        "name  size",
        "abcd    12",
        "efgh",
    ]


def test_a_path_is_broken_in_its_column() -> None:
    made = table(("what", "found"), [("python", "/" + "x" * 59)])
    assert made.lines(40) == [
        "what    found",
        "python  /" + "x" * 31,
        "        " + "x" * 28,
    ]


def test_a_text_is_told_once_of_all() -> None:
    said = [("a", "wide"), ("b", "slow"), ("c", "wide")]
    assert list(together(said)) == ["a, c: wide", "b: slow"]
