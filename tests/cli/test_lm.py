"""The commands for language models, on a tiny one with random weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.cli.output import visible
from edgeinfer.runtime.llm.llm import LLM
from tests.runtime.llm.seeing import coloured, seeing
from tests.runtime.llm.test_llm import model

for library in ("tokenizers", "jinja2", "llguidance"):
    pytest.importorskip(library)

ASKED = ("--max-tokens", 8, "--temperature", 0)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "_open", lambda *_: model())


def expected(prompt: str, tokens: int = 8) -> str:
    from edgeinfer.runtime.llm.params import SamplingParams

    with LLM("tiny") as llm:
        params = SamplingParams(temperature=0, top_k=20, max_tokens=tokens)
        return visible(llm.generate(prompt, params)[0].text)


def test_generate_goes_on(cli: Any) -> None:
    result = cli("generate", "tiny.edge", "the cat", *ASKED)
    assert result.code == 0
    assert result.out == expected("the cat") + "\n"
    assert "tokens read, first token after" in result.err
    assert result.err.rstrip().endswith("ended by length)")


def test_generate_reads_stdin(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat"))
    assert cli("generate", "tiny.edge", "-", *ASKED).out == expected("the cat") + "\n"


def test_generate_as_json(cli: Any) -> None:
    result = cli("generate", "tiny.edge", "the cat", *ASKED, "-n", 2, "--logprobs", 1, "--json")
    data = json.loads(result.out)
    assert [visible(each["text"]) for each in data["outputs"]] == [expected("the cat")] * 2
    assert len(data["outputs"][0]["logprobs"]) == 8
    assert data["outputs"][0]["usage"]["completion_tokens"] == 8
    assert data["stats"]["generated_tokens"] == 16
    assert result.err == ""


def test_generate_several_texts(cli: Any) -> None:
    lines = cli("generate", "tiny.edge", "the cat", *ASKED, "-n", 2).out
    assert lines.startswith(f"--- 1 (length)\n{expected('the cat')}\n--- 2 (length)\n")


def test_generate_quietly(cli: Any) -> None:
    result = cli("generate", "tiny.edge", "the cat", *ASKED, "-q")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_generate_of_a_form(cli: Any, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    result = cli("generate", "tiny.edge", "x", "--json-schema", schema, "--seed", 1)
    assert json.loads(result.out) in ("yes", "no")
    assert cli("generate", "tiny.edge", "x", "--regex", "a{3}b").out == "aaab\n"
    grammar = tmp_path / "braces.gbnf"
    grammar.write_text('root ::= "{" "}"')
    assert cli("generate", "tiny.edge", "x", "--grammar", grammar).out == "{}\n"


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (("--regex", "["), 1, "input 'grammar': expected a valid regex"),
        (("--regex", "a", "--grammar", "b"), 2, "give one of --json-schema, --regex"),
        (("--json-schema", "/nowhere"), 2, "/nowhere: no such file"),
        (("--temperature", "-1"), 1, "input 'temperature': expected at least 0"),
        (("--system", "x"), 2, "--system goes with --chat"),
    ],
)
def test_generate_refuses(cli: Any, given: tuple[str, ...], code: int, message: str) -> None:
    result = cli("generate", "tiny.edge", "x", *given)
    assert result.code == code
    assert message in result.err
    assert result.out == ""


def test_generate_in_a_conversation(cli: Any) -> None:
    result = cli("generate", "tiny.edge", "the cat", *ASKED, "--chat", "--system", "hello")
    prompt = (
        "<|start|>system\nhello<|im_end|>\n<|start|>user\nthe cat<|im_end|>\n<|start|>assistant\n"
    )
    assert result.out == expected(prompt) + "\n"


def talked(cli: Any, monkeypatch: pytest.MonkeyPatch, said: str, *given: object) -> Any:
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    return cli("chat", "tiny.edge", *ASKED, *given)


def test_chat_keeps_the_conversation(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = talked(cli, monkeypatch, "the cat\nhello\n")
    assert result.code == 0
    first = "<|start|>user\nthe cat<|im_end|>\n<|start|>assistant\n"
    one = expected(first)
    turn = "<|start|>user\nhello<|im_end|>\n<|start|>assistant\n"
    other = expected(f"{first}{one}<|im_end|>\n{turn}")
    assert result.out == f"{one}\n{other}\n"
    assert result.err.count("tokens read") == 2


def test_chat_takes_several_lines(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = "<|start|>user\nthe cat\n\nsat<|im_end|>\n<|start|>assistant\n"
    assert talked(cli, monkeypatch, '"""the cat\n\nsat"""\n').out == expected(turn) + "\n"
    assert talked(cli, monkeypatch, '"""\nthe cat\n\nsat\n"""\n').out == expected(turn) + "\n"
    assert talked(cli, monkeypatch, "the cat\\\n\\\nsat\n").out == expected(turn) + "\n"


def test_chat_begins_anew(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = expected("<|start|>user\nthe cat<|im_end|>\n<|start|>assistant\n")
    said = "the cat\n/clear\nthe cat\n/again\n/undo\nthe cat\n/stats\n/help\n/nothing\n/quit\nx\n"
    result = talked(cli, monkeypatch, said)
    assert result.out == f"{one}\n" * 4
    assert "tokens generated" in result.err
    assert "/system TEXT" in result.err
    assert "no command /nothing" in result.err


def test_chat_with_a_system_text(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = "<|start|>system\nhello<|im_end|>\n<|start|>user\nhi<|im_end|>\n<|start|>assistant\n"
    given = talked(cli, monkeypatch, "hi\n", "--system", "hello")
    said = talked(cli, monkeypatch, "x\n/system hello\nhi\n")
    assert given.out == expected(turns) + "\n"
    assert said.out.endswith(given.out)


def test_chat_goes_on_after_a_message_that_is_too_long(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = talked(cli, monkeypatch, "a b " * 400 + "\nthe cat\n")
    assert result.code == 0
    assert "expected at most 511 tokens" in result.err
    one = expected("<|start|>user\nthe cat<|im_end|>\n<|start|>assistant\n")
    assert result.out == one + "\n"


def test_chat_has_no_json(cli: Any) -> None:
    assert cli("chat", "tiny.edge", "--json").code == 2


def test_model_without_conversations_is_told(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "_open", lambda *_: model(""))
    result = cli("chat", "tiny.edge")
    assert result.code == 2
    assert "no chat template" in result.err


def test_bundle_without_a_language_model(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    result = cli("generate", "/nowhere.edge", "x")
    assert result.code == 2
    assert "no such file" in result.err


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(LLM, "_open", lambda *_: seeing())
    paths = [tmp_path / f"{level}.png" for level in (0, 255)]
    for path in paths:
        image.fromarray(coloured(int(path.stem))).save(path)
    return paths


def test_generate_looks_at_pictures(cli: Any, pictures: list[Path]) -> None:
    one, other = (cli("generate", "tiny.edge", "what?", *ASKED, "--image", p) for p in pictures)
    assert (one.code, other.code) == (0, 0)
    assert one.out != other.out
    both = cli("generate", "tiny.edge", "<image><image>", *ASKED, *_given(pictures))
    assert both.code == 0
    assert "41 tokens read" in both.err
    said = cli("generate", "tiny.edge", "what?", "--chat", *ASKED, *_given(pictures))
    assert said.code == 0
    assert said.out != one.out
    lost = cli("generate", "tiny.edge", "what?", "--image", "/nowhere.png")
    assert (lost.code, "/nowhere.png: no such file" in lost.err) == (2, True)
    more = cli("generate", "tiny.edge", "<image>", *_given(pictures))
    assert (more.code, "one for each <image> of the prompt, 1" in more.err) == (1, True)


def _given(paths: list[Path]) -> list[object]:
    return [each for path in paths for each in ("--image", path)]


def test_chat_shows_pictures_with_the_next_message(
    cli: Any, monkeypatch: pytest.MonkeyPatch, pictures: list[Path]
) -> None:
    first, second = pictures
    given = talked(cli, monkeypatch, "what?\n", "--image", first)
    said = talked(cli, monkeypatch, f"/image {first}\nwhat?\n/clear\nwhat?\n")
    assert said.out.startswith(given.out)
    assert said.out != 2 * given.out
    assert talked(cli, monkeypatch, "what?\n", "--image", second).out != given.out
    lost = talked(cli, monkeypatch, "/image /nowhere.png\nwhat?\nwhat?\n")
    assert "/nowhere.png: no such file" in lost.err
    assert (lost.code, lost.out) == (0, said.out.removeprefix(given.out))


def test_a_model_of_text_is_shown_no_picture(cli: Any, tmp_path: Path) -> None:
    result = cli("generate", "tiny.edge", "x", "--image", tmp_path / "a.png")
    assert result.code == 1
    assert "tiny is a model that reads text alone" in result.err
