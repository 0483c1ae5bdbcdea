"""The template language: what it can, and that it can neither hang nor reach out."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval import templates
from raveval.errors import ConfigError, DataError, Refused

ROW = {
    "question": "Why?",
    "choices": {"text": ["up", "down"], "label": ["A", "B"], "items": 3},
    "key": "B",
    "n": 3,
    "empty": None,
    "names": ["x", "y"],
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Q: {{ question }}\nA:", "Q: Why?\nA:"),
        ("line\n", "line\n"),
        ("{{ '<a & b>' }}", "<a & b>"),
        ("{{ n }} {{ 1.5 }} {{ true }}", "3 1.5 True"),
        ("{{ question ~ n ~ 'x' }}", "Why?3x"),
        ("{% if n > 2 %}big{% else %}small{% endif %}", "big"),
        ("{% for x in names %}{{ loop.index }}{{ x }} {% endfor %}", "1x 2y "),
        ("{{ row['question'] }}{{ row.names[0] }}", "Why?x"),
        ("{{ question.strip('?') | upper }}", "WHY"),
        ("{{ names | join('+') }}", "x+y"),
        ("{{ question | replace('W', 'w') }}", "why?"),
        ("{{ empty | default('none', true) }}", "none"),
        ("{{ absent if absent is defined else 'no' }}", "no"),
        ("{{ 'a [b] c ] [d' | without_brackets }}", "a  c ] [d"),
        ("{{ (2.345 | round(1)) }}", "2.3"),
    ],
)
def test_a_text_renders(source: str, expected: str) -> None:
    assert templates.text(source).render(ROW) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("choices.text", ["up", "down"]),
        ("choices.label.index(key)", 1),
        ("{{ choices.label.index(key) }}", 1),
        ("choices.items", 3),  # a key of the row comes before a method of dict
        ("names | map('upper')", ["X", "Y"]),
        ("[question, key]", ["Why?", "B"]),
        ("n * 2 + 1", 7),
        ("names + ['z']", ["x", "y", "z"]),
        ("question[:2]", "Wh"),
        ("1 if n == 3 else 0", 1),
        ("'12' | int", 12),
        ("empty", None),
        ("range(3)", range(3)),
    ],
)
def test_an_expression_gives_a_value(source: str, expected: object) -> None:
    assert templates.expression(source).value(ROW) == expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ answer }}", ["no column 'answer'", "question, choices, key"]),
        ("{{ choices.gold }}", ["no field 'gold'", "text, label"]),
        ("{{ names[7] }}", ["no element 7"]),
        ("{{ empty }}", ["null", "(null: empty)"]),
        ("{{ names }}", ["a list where text is needed", "join"]),
        ("{{ names | upper }}", ["a list where text is needed"]),
        ("{{ empty | trim }}", ["null"]),
        ("{{ question | int }}", ["'Why?' is not a whole number"]),
        ("{{ names.index('z') }}", ["not in list"]),
        ("{{ n / 0 }}", ["division by zero"]),
        ("{{ question - 1 }}", ["unsupported operand"]),
    ],
)
def test_a_row_that_does_not_fit_says_why(source: str, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        templates.text(source).render(ROW)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "'a' * 10**9",
        "'a' * 1000000000",
        "['a'] * 1000000000",
        "range(10**9)",
        "range(1000000000) | list",
        "2 ** 1000000000",
        "9223372036854775807 * 9223372036854775807 * 9223372036854775807",
        "'%1000000000d' % 1",
        "'a' | center(1000000000)",
        "'a'.ljust(1000000000)",
        "'{:1000000000}'.format(1)",
        "1 | round(1000000000, 'ceil')",
        "1 | round(1000000000)",
        "big | replace('', big)",
        "big.replace('b', big)",
        "big | list | join(big)",
        " ~ ".join(["big"] * 18),
        "9" * 5000,
        "(" * 5000,
        "+".join("1" * 5000),
        "x" * 100_000,
        "x.__class__.__mro__",
        "big.__init__.__globals__",
        "big | attr('__class__')",
        "[big] | map(attribute='__class__')",
        "[big] | sort(attribute='__class__.__name__')",
        "row.pop('big')",
        "cycler(1)",
        "lipsum()",
        "namespace()",
        "self",
        "[1] | counted steps",
    ],
)
def test_a_hostile_expression_is_refused_quickly(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(Refused):
        templates.expression(source).value({"big": "b" * 1_000_000, "x": 1})
    assert time.monotonic() - start < 2.0


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
        "{% for a in big %}{% for b in big %}{% endfor %}{% endfor %}",
        "{% for a in x recursive %}{{ loop(x) }}{% endfor %}",
        "{% for a in range(900) %}{{ big }}{% endfor %}",
        "{% set a = 'x' %}{{ a }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'a' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% if x %}" * 200 + "{% endif %}" * 200,
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ x",
    ],
)
def test_a_hostile_text_is_refused_quickly(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(Refused):
        templates.text(source).render({"big": "b" * 1_000_000, "x": [1]})
    assert time.monotonic() - start < 2.0


def test_a_faulty_template_is_refused_when_it_is_read() -> None:
    with pytest.raises(ConfigError, match="unexpected 'y' after the expression"):
        templates.expression("x y")
    with pytest.raises(ConfigError, match="No filter named 'shout'"):
        templates.text("{{ x | shout }}")
    with pytest.raises(ConfigError, match=r"eval\(\) cannot be called"):
        templates.text("{{ eval('1') }}")


def test_rendering_does_not_change_the_row() -> None:
    row = {"a": [3, 1, 2]}
    assert templates.expression("a | sort").value(row) == [1, 2, 3]
    with pytest.raises(Refused):
        templates.expression("a.append(4)").value(row)
    assert row == {"a": [3, 1, 2]}


@given(st.text())
def test_a_column_reaches_the_prompt_unchanged(text: str) -> None:
    assert templates.text("{{ a }}").render({"a": text}) == text
    assert templates.text("<{{ a ~ a }}>").render({"a": text}) == f"<{text}{text}>"


@given(st.text(alphabet="ab[] \n", max_size=40))
def test_without_brackets_is_the_published_clean_up(text: str) -> None:
    import re

    expected = re.sub(r"\[.*?\]", "", text)
    assert templates.text("{{ a | without_brackets }}").render({"a": text}) == expected
