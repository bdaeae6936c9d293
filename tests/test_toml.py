"""TOML of strangers is read in time that grows with it."""

import time

import pytest

from edgeinfer.errors import ProfileError
from edgeinfer.profiles.reader import parse
from edgeinfer.toml import TOMLDecodeError, loads


@pytest.mark.parametrize(
    "text",
    [
        "a." * 100_000 + "a = 1",
        "a . " * 50_000 + "a = 1",
        "a" + " " * 10 + (".a" + " " * 10) * 20_000 + "= 1",
        '"a".' * 50_000 + "a = 1",
        "b = {" + "a." * 50_000 + "a = 1}",
        "[" + "a." * 50_000 + "a]",
        "a = " + "[" * 100_000,
        # What begins a string here is within one there, and the other way round.
        "x='''\n\"\\\n'''#\\\n" + "a." * 50_000 + "a = 1",
        'x="""\n\'\n"""""\n#\'\n' + "a." * 50_000 + "a = 1",
        'x=\'\'\'\'\'\'\ny="""\\""""\n' + "a." * 50_000 + "a = 1",
        "a = " + "{a = " * 50_000,
        'a = "' + '\\"' * 100_000,
        "a = '" * 50_000,
        "a = " + "9" * 5000,
        "a = " + "[" * 64 + "]" * 60 + ", [" * 1000,
    ],
)
def test_levels_without_end_are_refused(text: str) -> None:
    start = time.process_time()
    with pytest.raises(TOMLDecodeError):
        loads(text)
    assert time.process_time() - start < 2


def test_what_people_write_is_read() -> None:
    text = """
        # ..................................................................... a line
        [tool."one.two".'three'.four]   # [[[[[
        x = [[1.5, 2.5], [3.5]]
        y = { a.b = "[[[[ a.b.c # no remark", c = 'x\\' }
        z = \"\"\"
        several .... lines
        \"\"\"
        names = ["a.png", "b.png"]
    """
    assert loads(text)["tool"]["one.two"]["three"]["four"]["y"]["c"] == "x\\"
    many = ", ".join(f'"{i}.png"' for i in range(1000))
    assert len(loads(f"names = [{many}]")["names"]) == 1000


def test_doubles_in_a_long_list_are_found_in_one_pass() -> None:
    names = ", ".join(f'"op{i}"' for i in range(40_000))
    start = time.process_time()
    with pytest.raises(ProfileError, match="backends: 'op7' is listed twice"):
        parse(f'backends = [{names}, "op7"]', "p.toml")
    assert time.process_time() - start < 5
