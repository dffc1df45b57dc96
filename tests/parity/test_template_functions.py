"""What templates may call: every function, filter, test, method and statement of the Hub's
environment gives the text that `transformers` gives."""

from __future__ import annotations

from typing import Any

import pytest
from reference.small_vocabularies import byte_level

from localllm.errors import ChatTemplateError
from localllm.text.chat_template import ChatTemplate
from localllm.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_metadata(byte_level())
MESSAGES = [
    {"role": "user", "content": " Grüße, <b> & \"Zitat\" 'x' "},
    {"role": "assistant", "content": "eins\nzwei\n\n  drei"},
    {"role": "user", "content": "漢字 😀 {{ x }}"},
]
OPTIONS: dict[str, Any] = {
    "data": {"b": [1, 2.5, None, True], "a": {"z": "é", "y": []}, "empty": {}},
    "names": ["b", "C", "a", "b"],
    "number": 7,
}

SAME = [
    # transformers' own
    "{{ data | tojson }}",
    "{{ data | tojson(indent=2) }}",
    "{{ data | tojson(indent=2, ensure_ascii=True) }}",
    "{{ data | tojson(true, 4) }}",
    "{{ data | tojson(sort_keys=true) }}",
    "{{ data | tojson(separators=(',', ':')) }}",
    "{{ data | tojson(separators=(', ', ': '), indent=1, sort_keys=true) }}",
    "{{ messages | tojson }}",
    "{{ messages[0].content | tojson }}{{ none | tojson }}{{ 1.0 | tojson }}{{ 'x' | tojson }}",
    "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y') }}{{ strftime_now('%%') }}",
    "{% generation %}a{{ number }}{% endgeneration %}b",
    "{% for m in messages %}{% generation %}\n{{ m.role }}\n{% endgeneration %}\n{% endfor %}",
    # Statements
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}"
    "{% endfor %}",
    "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.length }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}"
    "{{ loop.cycle('x', 'y') }}{{ loop.changed(m.role) }}{{ loop.depth }}\n{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.role }}{% else %}none{% endfor %}",
    "{% for m in [] %}{% else %}none{% endfor %}",
    "{% for key, value in data | dictsort %}{{ key }}={{ value }};{% endfor %}",
    "{% for key, value in data.items() %}{{ key }}={{ value }};{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
    "{% set ns = namespace(n=0, t='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.t = ns.t ~ m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.t }}{{ ns.x is defined }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}{% set z %}{{ x }}!{% endset %}{{ z }}",
    "{% set t | upper %}abc{% endset %}{{ t }}{% filter upper %}x{{ number }}{% endfilter %}",
    "{% macro m(a, b='d') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}"
    "{{ m(1, 2, 3, e=4) }}{{ m.name }}{{ m.arguments }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}x{% endcall %}",
    "{% if data.nothing %}a{% elif data.b %}b{% else %}c{% endif %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% raw %}{{ x }}{% endraw %}{# comment #}{{ '{{' }}",
    "  {%- if true -%}  a  {%- endif -%}  b  {%+ if true %} c {% endif %}\n  d\n\n{# x #}\ne",
    "    {% if true %}\n    a\n    {% endif %}\nb\n",
    # Expressions
    "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ 7 / 2 }}{{ -number }}{{ 1 < 2 < 3 }}{{ not 1 }}",
    "{{ 'a' 'b' ~ 1 ~ none ~ true }}{{ 'ab' * 3 }}{{ [1] + [2] }}{{ (1, 2) }}{{ [1] * 2 }}",
    "{{ 'x' in 'xy' }}{{ 1 not in [2] }}{{ 'b' in data }}{{ number is not none }}",
    "{{ messages[1:][0].role }}{{ messages[::-1][0].role }}{{ messages[-1]['role'] }}",
    "{{ 'abcdef'[1:3] }}{{ 'abcdef'[-2:] }}{{ 'abcdef'[::2] }}{{ names[:2] }}",
    "{{ 'yes' if number > 3 else 'no' }}{{ 'x' if false }}{{ undefined_thing or 'default' }}",
    "{{ data['b'][1] }}{{ data.a.z }}{{ data.missing }}{{ data['a']['missing'] }}",
    "{{ '%s-%d-%.2f-%r' % ('a', 3, 1.5, 'x') }}{{ '%(a)s' % {'a': 1} }}",
    "{{ dict(a=1, b=2) }}{{ dict({'a': 1}, b=2).a }}{{ {} }}{{ '{0.__class__}'.format(1) }}",
    "{{ range(3) | list }}{{ range(1, 10, 4) | list }}{{ range(3)[1] }}",
    "{{ cycler('a', 'b').next() }}{% set j = joiner(', ') %}{{ j() }}{{ j() }}",
    # Filters
    "{{ messages[0].content | trim }}|{{ 'xxaxx' | trim('x') }}|{{ ' a ' | string | length }}",
    "{{ names | join(', ') }}{{ messages | join('; ', attribute='role') }}{{ [1, 2] | join }}",
    "{{ names | sort }}{{ names | sort(true) }}{{ names | sort(case_sensitive=true) }}",
    "{{ messages | sort(attribute='content') | map(attribute='role') | list }}",
    "{{ names | unique | list }}{{ names | reverse | list }}{{ 'abc' | reverse }}",
    "{{ names | first }}{{ names | last }}{{ names | length }}{{ names | count }}",
    "{{ names | map('upper') | list }}{{ messages | map(attribute='role') | list }}",
    "{{ messages | map(attribute='name', default='?') | list }}",
    "{{ names | select('equalto', 'b') | list }}{{ names | reject('equalto', 'b') | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
    "{{ messages | rejectattr('role', 'in', ['user']) | list | length }}",
    "{{ [0, 1, none] | select | list }}{{ [1, 2, 3] | select('odd') | list }}",
    "{{ messages | selectattr('tool_calls') | list }}{{ none | select | list }}",
    "{{ messages | selectattr('tool_calls', 'defined') | list }}",
    "{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}{{ [3, 1, 2] | sum }}{{ names | max }}",
    "{{ messages | groupby('role') | map('first') | list }}",
    "{{ range(7) | batch(3, 'x') | list }}{{ range(7) | slice(3) | list }}",
    "{{ 'one two' | title }}{{ 'oNE' | capitalize }}{{ 'a' | upper }}{{ 'A' | lower }}",
    "{{ 'a b c' | replace(' ', '-') }}{{ 'aaa' | replace('a', 'b', 2) }}",
    "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}",
    "{{ 'a\n\nb' | indent('> ', blank=true) }}",
    "{{ 'hello world foo' | truncate(9) }}{{ 'hello world' | truncate(5, true, '') }}",
    "{{ 'hello big world' | wordwrap(7) }}{{ 'a b c' | wordcount }}{{ 'x' | center(5) }}|",
    "{{ nothing | default('d') }}{{ '' | default('e', true) }}{{ 'x' | d('y') }}",
    "{{ '3' | int + 1 }}{{ 'x' | int(9) }}{{ '1.5' | float }}{{ 2.567 | round(1) }}{{ 3.7 | abs }}",
    "{{ '0x1f' | int(0, 16) }}{{ 2.4 | round(0, 'ceil') }}{{ 'abc' | list }}",
    "{{ data | items | list }}{{ data | dictsort(true, 'key', true) | map('first') | list }}",
    "{{ '%s=%s' | format('a', 1) }}{{ 'a' | attr('upper') is defined }}",
    "{{ '<a>&' | escape }}{{ '<a>' | e }}{{ '<a>' | safe }}{{ 'a b/ü' | urlencode }}",
    # Tests
    "{{ number is number }}{{ 'x' is string }}{{ [] is iterable }}{{ {} is mapping }}"
    "{{ [] is sequence }}{{ true is boolean }}{{ 1 is integer }}{{ 1.0 is float }}",
    "{{ x is defined }}{{ x is undefined }}{{ none is none }}{{ number is odd }}{{ 4 is even }}"
    "{{ 9 is divisibleby(3) }}{{ 'a' is lower }}{{ 'A' is upper }}{{ 1 is eq(1) }}{{ 1 is ne 2 }}"
    "{{ 1 is lt(2) }}{{ 3 is ge 3 }}{{ 1 is in([1]) }}{{ true is true }}{{ 0 is false }}",
    "{{ raise_exception is callable }}{{ 'upper' is filter }}{{ 'odd' is test }}",
    "{{ 1 is sameas 1 }}",
    # Methods
    "{{ ' a '.strip() }}|{{ 'xax'.lstrip('x') }}|{{ 'xax'.rstrip('x') }}|{{ 'a\n'.rstrip('\n') }}",
    "{{ 'a,b,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b'.rsplit(',', 1)[-1] }}",
    "{{ 'a b'.split() }}{{ 'a\nb'.splitlines() }}{{ 'k=v'.partition('=') }}{{ ','.join(names) }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}",
    "{{ 'abc'.index('b') }}{{ 'aba'.count('a') }}{{ 'abc'.replace('b', 'x') }}{{ 'a'.upper() }}",
    "{{ 'Ab'.lower() }}{{ 'ab cd'.title() }}{{ 'ab'.capitalize() }}{{ '12'.isdigit() }}",
    "{{ 'a{}b{x}'.format(1, x=2) }}{{ '{0!r}{1:>5}'.format('a', 2) }}{{ '7'.zfill(3) }}",
    "{{ 'a'.center(5, '*') }}{{ 'a'.ljust(3) }}|{{ 'x'.removeprefix('x') }}",
    "{{ 'xy'.removesuffix('y') }}{{ 'x' ~ 'y'.rjust(3, '.') }}",
    "{{ data.get('b') }}{{ data.get('q', 'd') }}{{ data.keys() | list }}{{ data.values() | list }}",
    "{{ data.items() | list }}{{ names.index('C') }}{{ names.count('b') }}",
    "{{ messages[0].get('tool_calls') }}{{ names.copy() }}{{ data.copy().b }}",
]  # fmt: skip

REFUSED = [
    "{{ raise_exception('no') }}",
    "{% if messages[0].role == 'user' %}{{ raise_exception('User ' ~ 1) }}{% endif %}",
    "{{ messages.nothing.at_all }}",
    "{{ 'a' + 1 }}",
    "{{ none | length }}",
    "{{ undefined_function() }}",
    "{{ 1 / 0 }}",
    "{{ 'x' | no_such_filter }}",
    "{{ 1 is no_such_test }}",
    "{% for m in messages %}",
    "{{ 'a'.index('b') }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ namespace(_x=1) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ nothing | tojson }}",
    "{{ messages | map('no_such_filter') | list }}",
]


def theirs(source: str) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="", **OPTIONS
    )
    return str(rendered[0][0])


def ours(source: str) -> str:
    return ChatTemplate(source, TOKENIZER).prompt(MESSAGES, **OPTIONS).text


@pytest.mark.parametrize("source", SAME)
def test_same_text(source: str) -> None:
    assert ours(source) == theirs(source)


@pytest.mark.parametrize("source", REFUSED)
def test_both_refuse(source: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 (whatever jinja2 or transformers raise)
        theirs(source)
    with pytest.raises(ChatTemplateError):
        ours(source)


def test_what_only_we_have() -> None:
    """`from_json`, as other programs with the Hub's templates offer it, and lists that change."""
    assert ours("{{ ('[1, {\"a\": 2}]' | from_json)[1].a }}") == "2"
    assert ours("{% set _ = names.append('d') %}{{ names | join }}") == "bCabd"
    with pytest.raises(ChatTemplateError, match="failed"):
        ours("{{ '{' | from_json }}")


@pytest.mark.parametrize(
    "call",
    ["['a'] | random", "'x' | urlize", "{} | xmlattr", "1 | pprint", "'x' | striptags",
     "1 | filesizeformat", "lipsum()", "'a'.translate({97: 'b'})"],
)  # fmt: skip
def test_what_only_they_have(call: str) -> None:
    """No template in use calls these; they are slow, or differ from run to run."""
    assert isinstance(theirs("{{ " + call + " }}"), str)
    with pytest.raises(ChatTemplateError):
        ours("{{ " + call + " }}")
