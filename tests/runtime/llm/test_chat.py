"""Chat templates run in a sandbox and say what they refuse."""

from __future__ import annotations

import pytest

from edgeinfer.errors import InputError, LoadError
from edgeinfer.runtime.llm.chat import ChatTemplate, Message, plain
from tests.runtime.llm.texts import TEMPLATE

pytest.importorskip("jinja2")
USER = {"role": "user", "content": "Hi <b> & 'you'"}


def test_conversation_is_rendered() -> None:
    template = ChatTemplate(TEMPLATE, {})
    text = template.render([{"role": "system", "content": "Be kind."}, USER])
    assert text == (
        "<|start|>system\nBe kind.<|im_end|>\n<|start|>user\nHi <b> & 'you'<|im_end|>\n"
        "<|start|>assistant\n"
    )
    assert template.render([USER], prompt=False).endswith("<|im_end|>\n")


def test_names_of_tokens_and_further_variables_are_there() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ enable_thinking }}", {})
    assert template.render([USER], enable_thinking=False) == "Hi <b> & 'you'False"
    template = ChatTemplate("{{ bos_token }}x", {"bos_token": "<s>"})
    assert template.render([USER]) == "<s>x"


def test_json_is_written_as_it_is() -> None:
    template = ChatTemplate("{{ tools | tojson(indent=2) }}|{{ messages | tojson }}", {})
    text = template.render([{"role": "user", "content": "é<"}], [{"a": 1}])
    assert text == '[\n  {\n    "a": 1\n  }\n]|[{"role": "user", "content": "é<"}]'


def test_marks_of_training_and_loops_are_known() -> None:
    text = (
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert ChatTemplate(text, {}).render([USER, USER]) == USER["content"]


def test_refusal_of_a_template_is_told() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InputError, match="roles must alternate"):
        template.render([USER])


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ (messages|first).clear() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ undefined_thing.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_template_of_a_stranger_gets_nothing(text: str) -> None:
    messages = [dict(USER)]
    template = ChatTemplate(text, {})
    try:
        found = template.render(messages)
    except InputError:
        found = ""
    assert found.strip() == ""
    assert messages == [USER]


def test_text_that_is_no_template_is_refused() -> None:
    with pytest.raises(LoadError, match=r"chat_template\.jinja"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize("messages", [[], [{"content": "x"}], ["x"], [{"role": 5}]])
def test_messages_of_another_form_are_refused(messages: list[dict[str, object]]) -> None:
    with pytest.raises(InputError, match="messages"):
        ChatTemplate(TEMPLATE, {}).render(messages)


_CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}(CALL){% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": "é", "b": [1]}'),
        ("{{ c.function | tojson }}", '{"name": "f", "arguments": {"a": "é", "b": [1]}}'),
        (
            "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
            "a=é;b=[1];",
        ),
        ("{{ 'x' + c.function.arguments }}", 'x{"a": "é", "b": [1]}'),
        ("{{ c.function.arguments }}", '{"a": "é", "b": [1]}'),
        (
            "{{ c.function.arguments if c.function.arguments is string else "
            "c.function.arguments | tojson }}",
            '{"a": "é", "b": [1]}',
        ),
    ],
)
@pytest.mark.parametrize("given", ['{"a": "é", "b": [1]}', {"a": "é", "b": [1]}])
def test_arguments_of_calls_have_the_form_that_a_template_shows(
    written: str, expected: str, given: object
) -> None:
    """Clients send JSON text, which most templates wrote as a text in a text."""
    template = ChatTemplate(_CALLS.replace("(CALL)", written), {})
    inner = {"name": "f", "arguments": given}
    calls = [{"id": "123456789", "type": "function", "function": inner}]
    messages: list[Message] = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    assert template.render(messages) == expected
    assert inner["arguments"] == given


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_arguments_that_are_no_object_stay(text: str) -> None:
    template = ChatTemplate(_CALLS.replace("(CALL)", "{{ c.function.arguments }}"), {})
    calls = [{"function": {"name": "f", "arguments": text}}, "x"]
    assert template.render([{"role": "assistant", "tool_calls": calls[:1]}]) == text


def test_listed_texts_are_one_for_a_model_of_text() -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
    assert plain({"role": "user", "content": parts}, "messages[0]")["content"] == "Hi you"
    with pytest.raises(InputError, match=r"content\[1\]': expected a text, .*audio"):
        plain({"role": "user", "content": [parts[0], {"type": "audio"}]}, "messages[0]")
