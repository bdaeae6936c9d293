"""Templates of strangers: no end of turns, of characters or of anything else."""

import contextlib
import time

import pytest

from edgeinfer.errors import DamagedError, InputError
from edgeinfer.llm.generation import MOST_TEMPLATE
from edgeinfer.runtime.llm import sandbox
from edgeinfer.runtime.llm.chat import ChatTemplate
from edgeinfer.runtime.llm.sandbox import Environment

for library in ("tokenizers", "jinja2"):
    pytest.importorskip(library)

MESSAGES = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
X = "{% for i in range(40) %}"
END = "{% endfor %}"
LONG = "{% set l = ['x'] * 99999 %}{% for i in range(9999) %}"

ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}" + END * 2,
    "text in loops": "{% for i in range(99999) %}" + "x" * 9999 + END,
    "loops that choose": "{% for i in range(9999) %}{% for j in range(99999) if false %}" + END * 2,
    "a macro that calls itself": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loops": "{% for a in [[1, 2]] recursive %}{{ loop([a, a]) }}{{ loop([a]) }}" + END,
    "a product": "{{ 'x' * 10000000000 }}",
    "a list": "{{ [1] * 10000000000 }}",
    "a power": "{{ 9 ** 99999 }}",
    "a number": "{% set n = namespace(v=3) %}"
    + X
    + "{% set n.v = n.v * n.v %}"
    + END
    + "{{ n.v }}",
    "sums": "{% set n = namespace(s='x') %}" + X + "{% set n.s = n.s + n.s %}" + END,
    "joins": "{% set n = namespace(s='x') %}" + X + "{% set n.s = n.s ~ n.s %}" + END,
    "lists": "{% set n = namespace(s='x') %}"
    + X
    + "{% set n.s = [n.s, n.s] %}"
    + END
    + "{{ n.s }}",
    "objects": "{% set n = namespace(s='x') %}" + X + "{% set n.s = {1: n.s, 2: n.s} %}" + END,
    "calls": "{% set n = namespace(s='x') %}"
    + X
    + "{% set n.s = dict(a=n.s, b=n.s) %}"
    + END
    + "{{ n.s }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a width from elsewhere": "{{ '%*d' % (9999999999, 1) }}",
    "a width of a form": "{{ '{:9999999999}'.format(1) }}",
    "a form of a form": "{{ '{:{}}'.format(1, 9999999999) }}",
    "the middle": "{{ 'x'.center(9999999999) }}",
    "zeros": "{{ 'x'.zfill(9999999999) }}",
    "a filter": "{{ 'x' | center(9999999999) }}",
    "replaced": "{{ ('x' * 99999) | replace('x', 'y' * 99999) }}",
    "replaced by a method": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "joined": "{{ (['x'] * 99999) | join('y' * 99999) }}",
    "joined by a method": "{{ ('y' * 99999).join(['x'] * 99999) }}",
    "tabs": "{{ ('\t' * 99999).expandtabs(99999) }}",
    "indented": "{{ ('x\n' * 99999) | indent(65000) }}",
    "translated": "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
    "slices": "{% set s = 'x' * 999999 %}{% for i in range(99999) %}{% set t = s[1:] %}" + END,
    "slices into": "{{ [1] | slice(9999999999) | list }}",
    "a sum of lists": "{{ ([[1] * 999] * 999) | sum(start=[]) }}",
    "a date": "{{ strftime_now('%Y' * 9999) }}",
    "JSON": "{{ messages | tojson(indent=9999999) }}",
    "holders": "{% set n = namespace(s='x') %}"
    + X
    + "{% set n.s = cycler(n.s, n.s).items %}"
    + END
    + "{{ n.s }}",
    "views": "{% set d = dict(a='x' * 99999) %}{% for i in range(999) %}{{ d.items() | length }}"
    + "{% set t = d.items() | string %}"
    + END,
    "parameters": "{% set n = namespace(s='x') %}"
    + "{% macro m() %}{% set n.s = varargs %}{% endmacro %}"
    + X
    + "{{ m(n.s, n.s) }}"
    + END
    + "{{ n.s | length }}",
    "comparisons": LONG + "{{ loop.changed(l) }}" + END,
    "searches": LONG + "{{ l.count('y') }}" + END,
    "safe": "{% set s = 'a' * 8000000 %}{% for i in range(99999) %}{% if s|safe %}{% endif %}"
    + END,
    "tests": LONG + "{{ l is eq(l) }}" + END,
    "parts of a range": "{% set r = range(99999) %}{% for i in range(9999) %}{{ 1.5 in r }}" + END,
    "counts of a range": "{{ range(99999).count(1.5) }}",
    "parts of a text": "{% set s = 'a' * 6000000 %}{% for i in range(99) %}{{ 'b' in s }}" + END,
    "parts of a short text": "{% set s = 'a' * 29000 %}{% set t = 'a' * 9000 ~ 'b' ~ 'a' * 5000 %}"
    + "{% for i in range(999) %}{{ t in s }}"
    + END,
    "chosen by parts": "{% set s = 'a' * 29000 %}{% set t = 'a' * 9000 ~ 'b' ~ 'a' * 5000 %}"
    + "{{ [t] * 999 | select('in', s) | list | length }}",
    "searched from the end": "{{ ('a' * 999999).rfind('b' ~ 'a' * 99999) }}",
    "one name in many fields": "{{ ('%(a)s' * 10000) % {'a': 'x' * 1000000} }}",
    "a list in many fields": "{{ ('%(a)s' * 10000) | format(a=range(99999) | list) }}",
    "a number in many fields": "{{ ('{0}' * 100000).format(2 ** 4000) }}",
    "wide fields": "{{ ('%(a)999s' * 200000) % {'a': ''} }}",
    "wide fields of a form": "{{ ('{0:>999}' * 200000).format('') }}",
    "a wide number": "{{ '% 999d' % 1 }}",
    "a long fraction": "{{ '%.999f' % 1 }}",
    "JSON of lists in lists": "{{ [range(99999) | list] | tojson(indent=30000) }}",
    "keys of a type": "{{ dict.fromkeys(range(99999)) }}",
    "digits in another base": "{{ ('1' * 9999) | int(base=2) }}",
    "lists within": "{% set n = namespace(s=[]) %}{% for i in range(999) %}{% set n.s = [n.s] %}"
    + END
    + "{{ n.s }}",
    "long numbers": "{{ ([2 ** 4095] * 99999) | join }}",
    "a path of each": "{{ (['a'] * 50000) | map(attribute='0.' * 100000 ~ '0') | list | length }}",
    "sorted by a path": "{{ (['a'] * 50000) | sort(attribute='0.' * 100000 ~ '0') | length }}",
    "one by a path": "{{ (['a'] * 50000) | max(attribute='0.' * 100000 ~ '0') }}",
    "what stands in": "{{ ([{}] * 50000) | map(attribute='x', default='y' * 99999) | join }}",
    "many pieces": "{% set s = 'ab ' * 99999 %}{% for i in range(999) %}{% set t = s.split() %}"
    + END,
    "letters": "{% set s = 'a' * 999999 %}{% for i in range(9999) %}{{ s is lower }}" + END,
    "capitals": "{% set s = 'A' * 999999 %}{% for i in range(9999) %}{{ s is upper }}" + END,
    "names of tests": "{% for i in range(99999) %}{{ ('a' * 9999) is test }}" + END,
    "a width that is tested": "{{ '%9999999999d' is odd }}",
    "a width that is divided": "{{ ('%9999999999d', 2) | first is divisibleby 2 }}",
    "operators": "{% set a = 1 %}{% for i in range(99999) %}" + "{% set b = a+a %}" * 999 + END,
    "names": "{% set a = 1 %}{% for i in range(99999) %}" + "{% if a %}{% endif %}" * 3000 + END,
    "of a macro": "{% macro m(a) %}" + "{% set b = a+a %}" * 999 + "{% endmacro %}"
    "{% for i in range(99999) %}{{ m(1) }}" + END,
    "a list of numbers": "{% for i in range(499999) %}{% set b = [" + "1," * 9999 + "] %}" + END,
    "choices": "{{ ([['x'] * 9999] * 999) | select('eq', ['x'] * 9999) | list | length }}",
}


@pytest.mark.sample(18)
@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_has_no_end_is_refused(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(InputError, match="messages"):
        ChatTemplate(text, {}).render(MESSAGES)
    assert time.process_time() - begun < 3


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages | map(attribute='__class__') | list | string }}",
        "{% include 'x' %}",
        "{{ ''.format.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ lipsum(n=3) }}",
    ],
)
def test_nothing_of_python_is_in_reach(text: str) -> None:
    try:
        rendered = ChatTemplate(text, {}).render(MESSAGES)
    except (InputError, DamagedError):
        return
    assert "class" not in rendered


@pytest.mark.parametrize(
    "text",
    [
        "{{ (1).to_bytes(99, 'big') }}",
        "{{ 'x'.encode().ljust(99) }}",
        "{{ (1.5).hex() }}",
        "{{ 'x'.translate({120: 'y'}) }}",
        "{{ range(3).index(1) }}",
        "{{ dict.fromkeys([1]) }}",
    ],
)
def test_values_have_the_methods_that_are_charged_for(text: str) -> None:
    with pytest.raises(InputError, match="messages"):
        ChatTemplate(text, {}).render(MESSAGES)


def test_a_namespace_does_not_show_what_it_holds() -> None:
    text = "{% set n = namespace(a='secret') %}{{ n }}{{ n.a | length }}"
    assert ChatTemplate(text, {}).render(MESSAGES) == "<Namespace>6"


NONE = {
    "unfinished": "{% for %}",
    "a number": "{{ " + "9" * 5000 + " }}",
    "deep": "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "long": "x" * (MOST_TEMPLATE + 1),
    "a filter that there is not": "{{ 1 | xmlattr }}",
    "open": "{% for a in b %}",
}


@pytest.mark.parametrize("text", NONE.values(), ids=NONE.keys())
def test_what_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(DamagedError, match=r"chat_template\.jinja: "):
        ChatTemplate(text, {})


def test_what_templates_do_is_as_it_was() -> None:
    text = """{%- set ns = namespace(n=0, said=[]) %}
{%- macro shown(m, last=false) %}
{{- '<' ~ m.role ~ '>' }}{{ m['content'] | trim }}{{ '!' if last }}{% endmacro %}
{%- for m in messages if m.role != 'system' %}
{%- if loop.first and not loop.last %}{{ bos_token ~ '(' ~ (messages | length) ~ ')' }}{% endif %}
{%- set ns.n = ns.n + 1 %}{{ shown(m, last=loop.last) }}{{ loop.cycle(',', ';') }}
{%- if 'cat' in m.content and m.content[:3] == 'the' %}
{{- m.content.split(' ')[-1].upper() }}{% endif %}
{%- endfor %}
{{- ns.n }} {{ '%s-%d' % ('a', 3) }} {{ 'ab' * 2 }} {{ 7 % 4 }} {{ 2 ** 5 }} {{ [1, 2] + [3] }}
{{- {'a': messages[0].role} | tojson }} {{ messages | map(attribute='role') | join('+') }}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}
{{- range(3) | list | string }} {{ '{} and {}'.format('x', 1) }} {{ ('a', 'b') | last }}
{{- messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | first }}
{{- 'a b' | replace(' ', '_') | title }}{% if tools is not defined or not tools %} none{% endif %}
{%- for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}
{{- 'in 2024, %5.1f %s' | format(2, 'x') }}{{ 1 < 2 <= 2 }}{{ 'q' not in 'abc' }}
{%- for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"""
    rendered = ChatTemplate(text, {"bos_token": "<s>"}).render(MESSAGES)
    assert rendered == (
        "<s>(2)<user>the cat,CAT<assistant>sat!;2 a-3 abab 3 32 [1, 2, 3]"
        '{"a": "user"} user+assistant1[0, 1, 2] x and 1 bsatA_b nonea2b1in 2024,   2.0 xTrueTrue123'
    )


def test_long_conversations_have_room() -> None:
    text = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim | replace('a', 'b') }}" + END
    many = [{"role": "user", "content": "a" * 1000}] * 5000
    assert ChatTemplate(text, {}).render(many) == ("<user>" + "b" * 1000) * 5000


WALKS_NOTHING = {
    *("abs", "attr", "count", "d", "default", "first", "items", "last", "length"),
}
"""Filters that take as long for a long text as for a short one."""


def test_every_filter_charges_for_the_text_that_it_walks() -> None:
    text, free = "a" * 99_999, set()
    environment = Environment()
    for name in [n for n in environment.filters if not n.startswith("_")]:
        act, left = environment.filters[name], [1 << 40]
        token = sandbox._left.set(left)
        with contextlib.suppress(Exception):
            own = (environment,) if hasattr(act, "jinja_pass_arg") else ()
            act(*own, text)
        sandbox._left.reset(token)
        if (1 << 40) - left[0] < len(text):
            free.add(name)
    assert free == WALKS_NOTHING
