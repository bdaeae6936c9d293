import pytest

from edgeinfer.bundle.paths import collisions, path_problem


@pytest.mark.parametrize("path", ["a", "variants/x/model.onnx", "ä/ü.bin", ".hidden/x", "a..b/c"])
def test_portable_paths_pass(path: str) -> None:
    assert path_problem(path) == ""


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "is empty"),
        ("/etc/passwd", "is absolute"),
        ("//server/share", "is absolute"),
        ("../x", "has a '..' component"),
        ("a/../../x", "has a '..' component"),
        ("a/./b", "has a '.' component"),
        ("a//b", "has an empty component"),
        ("a/", "has an empty component"),
        ("C:/x", "names a drive"),
        ("c:x", "names a drive"),
        ("a\\b", "has a backslash"),
        ("a/b:stream", "has the character ':'"),
        ("a\x00b", "has the character '\\x00'"),
        ("a\nb", "has the character '\\n'"),
        ("a?", "has the character '?'"),
        ("x/CON", "has the component 'CON', which some systems reserve"),
        ("x/nul.txt", "has the component 'nul.txt', which some systems reserve"),
        ("lpt1/x", "has the component 'lpt1', which some systems reserve"),
        ("a./b", "has a component that starts or ends with a space or ends with a dot"),
        ("a /b", "has a component that starts or ends with a space or ends with a dot"),
        ("ü" * 128, "has a component longer than 255 bytes"),
        ("a/" * 200 + "b", "is longer than 400 characters"),
    ],
)
def test_paths_that_leave_or_break_somewhere_are_refused(path: str, problem: str) -> None:
    assert path_problem(path) == problem


def test_collisions_of_case_and_normal_form() -> None:
    assert collisions(["a/X", "a/x"]) == ["'a/x' and 'a/X' are one file where case does not count"]
    assert len(collisions(["\u00e9", "e\u0301"])) == 1
    assert collisions(["a", "a/b"]) == ["'a' is a file and the folder of 'a/b'"]
    assert collisions(["a/b", "a/c", "b"]) == []
