"""Hostile chat templates end within their budget: 250 ms of CPU, 4 MiB of output, 64 MiB made."""

from __future__ import annotations

import contextlib
import resource
import threading
import time

import pytest
from reference.small_vocabularies import byte_level

from localllm.errors import ChatTemplateError
from localllm.text.chat_template import ChatTemplate
from localllm.text.template_budget import BudgetError, budgeted
from localllm.text.template_sandbox import TemplateSandbox
from localllm.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_metadata(byte_level())
NS = "{% set ns = namespace(x='aaaaaaaa', y=[1], z=[1]) %}"
BIG = "{% set x = 'a' * 4000000 %}"

ENDLESS = {
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "loops without output": "{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% if a == b %}{% endif %}{% endfor %}{% endfor %}",
    "exponential macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for a in [[1]] * 9999 recursive %}{% for b in range(9999) %}{% endfor %}"
    "{% endfor %}",
    "searches": "{% set r = range(9999) | list %}" + "{{ 1.5 in r }}" * 8000,
    "sorts": "{% set r = range(9999) | list %}" + "{% set s = r | sort %}" * 2000,
}

TWINS = (
    "{% set ns = namespace(x=[], y=[]) %}{% set x = ns.x %}{% set y = ns.y %}"
    "{% for i in range(16) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
    "{% set both = [ns.x, ns.y] %}"
    "{% set _ = x.extend(range(9999) | list) %}{% set _ = y.extend(range(9999) | list) %}"
)
"""Two equal trees that share their leaves, made heavy after they were put together."""

HUGE = {
    "compare grown twins": TWINS + "{{ ns.x == ns.y }}",
    "test grown twins": TWINS + "{{ ns.x is eq(ns.y) }}",
    "find grown twins": TWINS + "{{ both.index(ns.y) }}",
    "filter grown twins": TWINS + "{{ both | sort | length }}",
    "select grown twins": TWINS + "{{ both | select('eq', ns.y) | list | length }}",
    "print a grown tree": TWINS + "{{ ns.x }}",
    "append": NS + "{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% set _ = ns.y.append(1) %}{% endfor %}{% endfor %}",
    "append to what is walked": "{% set x = [1] %}{% for a in x %}{% set _ = x.append(a) %}"
    "{% endfor %}",
    "extend": NS + "{% for i in range(60) %}{% set _ = ns.y.extend(ns.y) %}{% endfor %}",
    "append to itself": NS + "{% for i in range(60) %}{% set _ = ns.y.append(ns.y) %}{% endfor %}",
    "update": "{% set x = {} %}{% for i in range(60) %}{% set _ = x.update({i: x}) %}{% endfor %}",
    "output": "{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}",
    "wide output": BIG + "{% for a in range(9999) %}{{ x }}{% endfor %}",
    "repeat": "{{ 'a' * 10 ** 10 }}",
    "repeat a list": "{{ ([1] * 10 ** 9) | length }}",
    "power": "{{ 10 ** 10000 }}",
    "powers": "{{ 9 ** 999 ** 999 }}",
    "double by ~": NS + "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "double by +": NS + "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "double by literals": NS + "{% for i in range(60) %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}",
    "double dicts": NS
    + "{% for i in range(60) %}{% set ns.y = {'a': ns.y, 'b': ns.y} %}{% endfor %}",
    "double by dict()": NS
    + "{% for i in range(60) %}{% set ns.y = dict(a=ns.y, b=ns.y) %}{% endfor %}",
    "compare twins": NS + "{% for i in range(60) %}{% set ns.y = (ns.y, ns.y) %}"
    "{% set ns.z = (ns.z, ns.z) %}{% endfor %}{{ ns.y == ns.z }}",
    "center": "{{ 'x' | center(10 ** 9) }}",
    "center constant": "{{ 'x' | center(1000000000) }}",
    "center method": "{{ 'x'.center(1000000000) }}",
    "zfill": "{{ '1'.zfill(1000000000) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format operator": "{{ '%1000000000d' % 1 }}",
    "format star": "{{ '%*d' % (1000000000, 1) }}",
    "format method": "{{ '{:>1000000000}'.format(1) }}",
    "format nested": "{{ '{:>{w}}'.format(1, w=1000000000) }}",
    "format many": "{{ ('{0:>9999}' * 100000).format(1) }}",
    "format map": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "replace": BIG + "{{ x | replace('a', x) | length }}",
    "replace method": BIG + "{{ x.replace('a', x) | length }}",
    "replace nothing": BIG + "{{ x.replace('', x) | length }}",
    "join": BIG + "{{ range(9999) | map('replace', '1', x) | join }}",
    "join method": BIG + "{{ ''.join(range(9999) | map('replace', '1', x)) }}",
    "shared": BIG + "{{ [x, x, x] | tojson | length }}",
    "print shared": "{% set x = 'a' * 400000 %}{% set y = [x, x] %}{{ [y, y, y, y, y, y] }}",
    "slices": BIG + "{% set ns = namespace(y=[]) %}{% for i in range(9999) %}"
    "{% set ns.y = ns.y + [x[1:]] %}{% endfor %}",
    "sum of lists": "{{ ([range(9999) | list] * 100) | sum(start=[]) | length }}",
    "tojson indent": "{{ [1] | tojson(indent=1000000000) }}",
    "indent": "{{ ('a\n' * 1000000) | indent(9999) }}",
    "batch": "{{ range(9) | batch(1000000000, 'x') | list | length }}",
    "slice": "{{ range(9) | slice(1000000000) | list | length }}",
    "round": "{{ 1 | round(1000000000, 'ceil') }}",
    "wordwrap": "{{ ('a ' * 1000000) | wordwrap(1) }}",
    "expandtabs": "{{ ('\t' * 100000).expandtabs(9999) | length }}",
    "translate": "{{ 'aaa'.translate({97: 'a' * 1000000}) }}",
    "range": "{{ range(10 ** 9) | length }}",
    "split": BIG + "{{ x.split('a') | length }}",
    "set block": "{% set x %}{% for i in range(9999) %}{{ 'a' * 999 }}{% endfor %}{% endset %}",
    "filter block": "{% filter upper %}{% for i in range(9999) %}{{ 'a' * 999 }}{% endfor %}"
    "{% endfilter %}",
    "sort a text": BIG + "{{ x | sort | length }}",
    "group a text": BIG + "{{ x | groupby(0) | list | length }}",
    "unique characters": BIG + "{{ x | unique | list | length }}",
    "format a text": "{% set x = '1 ' * 2000000 %}{{ x | format(1) }}",
    "strftime": "{{ strftime_now('%1000000000Y') }}",
}

DEEP = {
    "macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "parentheses": "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
    "ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "lists": "{{ " + "[" * 30_000 + "]" * 30_000 + " }}",
    "unary": "{{ " + "-" * 60_000 + "1 }}",
    "sums": "{{ " + "1+" * 30_000 + "1 }}",
}


SLOW = (
    *("list", "urlencode", "tojson", "tojson(ensure_ascii=true)", "trim", "title", "capitalize"),
    *("int", "float", "truncate(9)", "reverse", "last", "sort", "batch(2) | list", "dictsort"),
    *("map('upper') | list", "min", "max", "sum", "wordcount", "center(9)", "slice(2) | list"),
    *("replace('é', 'e')", "from_json", "format(1)", "join(',')", "attr('x')", "unique | list"),
)
"""Filters that are given a text as long as there may be one."""

ESCAPES = (
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ['']|map(attribute='__class__')|first }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ messages.__len__ }}",
    "{{ range.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__init__.__globals__ }}",
    "{% macro f() %}{% endmacro %}{{ f.__globals__ }}",
    "{% for a in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{{ lipsum() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
    "{{ 'x' | tick.__globals__ }}",
    "{{ dict.mro() }}",
    "{{ (messages | groupby('role')).__class__ }}",
    "{{ messages[0].items.__self__ }}",
)


def render(source: str) -> str:
    return ChatTemplate(source, TOKENIZER).prompt([{"role": "user", "content": "hi"}]).text


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_templates_are_stopped(name: str) -> None:
    with pytest.raises(ChatTemplateError, match="stopped: it ran for more than 250 ms"):
        render(ENDLESS[name])


def test_the_budget_is_kept() -> None:
    """Compiling apart, a stopped rendering takes 250 ms and one operation."""
    template = ChatTemplate(ENDLESS["nested loops"], TOKENIZER)
    for _ in range(2):
        before = time.thread_time()
        with pytest.raises(ChatTemplateError):
            template.prompt([{"role": "user", "content": "hi"}])
        used = time.thread_time() - before
    assert 0.24 < used < 1.25


@pytest.mark.parametrize("name", HUGE)
def test_huge_templates_are_stopped(name: str) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = time.thread_time()
    with pytest.raises(ChatTemplateError, match="stopped: "):
        render(HUGE[name])
    assert time.thread_time() - before < 2.0
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown_kib < 96 << 10


def test_no_filter_is_slow_on_a_long_text() -> None:
    """One operation cannot be interrupted, so each must be short: a tenth of the limit, mostly."""
    for name in SLOW:
        before = time.thread_time()
        with contextlib.suppress(ChatTemplateError):
            render("{% set x = 'é ' * 1000000 %}{% set y = x | " + name + " %}")
        assert time.thread_time() - before < 2.5, name


@pytest.mark.parametrize("name", DEEP)
def test_deep_templates_fail_cleanly(name: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(DEEP[name])


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out(source: str) -> None:
    """What is unsafe is refused, or not there and prints as nothing."""
    with contextlib.suppress(ChatTemplateError):
        assert render(source) == ""


def test_a_template_of_ten_megabytes_is_not_even_read() -> None:
    before = time.thread_time()
    with pytest.raises(ChatTemplateError, match="10485760 characters, at most 131072"):
        render("{{ 1 }}   " * (1 << 20))
    assert time.thread_time() - before < 2.0


def test_there_are_enough_hostile_templates() -> None:
    assert len(ENDLESS) + len(HUGE) + len(DEEP) + len(ESCAPES) >= 80


def test_deep_templates_fail_cleanly_in_a_thread() -> None:
    """Threads have smaller stacks."""
    failed = []

    def run() -> None:
        for source in DEEP.values():
            try:
                render(source)
            except ChatTemplateError:
                failed.append(source)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(failed) == len(DEEP)


def test_real_sizes_fit_into_the_budget() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>' + m.content | trim }}"
        "{% else %}{{ m.content.split('x')[-1] }}{% endif %}{{ loop.index }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 50}] * 2000
    assert len(ChatTemplate(source, TOKENIZER).prompt(messages).text) > 500_000
    long = [{"role": "user", "content": "y" * 3_000_000}]
    assert len(ChatTemplate(source, TOKENIZER).prompt(long).text) > 3_000_000
    with pytest.raises(ChatTemplateError, match="4 MiB"):
        ChatTemplate(source, TOKENIZER).prompt(long * 2)


def test_a_template_cannot_run_outside_a_budget() -> None:
    sandbox = TemplateSandbox()
    with budgeted():
        template = sandbox.from_string("{{ 'a' | upper }}")
    with pytest.raises(BudgetError, match="outside its budget"):
        template.render()
