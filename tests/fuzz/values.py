"""Strategies for what nobody expects: texts, numbers, values of YAML and JSON."""

import datetime
from typing import Any

from hypothesis import strategies as st

AWKWARD = (
    *(
        "",
        " ",
        "\n",
        "0",
        "-1",
        "null",
        "None",
        "true",
        "[]",
        "{}",
        "a.b",
        "..",
        "/",
        "~",
        "~nobody",
    ),
    *("../../etc/passwd", "/dev/null", "a/b", ".hidden", "CON", "a" * 300, "é" * 200, "x" * 5000),
    *("\x00", "a\x00b", "\x1b[31m\x07", "\ud800", "a\udfffb", "\u202eabc", "\ufeff", "\ufffe"),
    *("{{", "{{ x", "{% for x in row %}", "{{ row }}", "{{ 9**9**9 }}", "{{ ''.__class__ }}"),
    *("{# #}", "}}", "a.yaml", "missing/task.yml", "s3://", "s3://bucket", "file:///x", "http:/x"),
    *("[" * 200, "(" * 3000, "9" * 5000, "1e999", "<script>alert(1)</script>", "a,b", "=1+1"),
)
"""Texts that are something to somebody: paths, templates, URLs, terminals, parsers."""

anywhere = st.text(st.characters(exclude_categories=()), max_size=20)
"""Any code points, halves of surrogate pairs and NUL among them."""

texts = st.sampled_from(AWKWARD) | anywhere

numbers = (
    st.integers(-3, 10)
    | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**400])
    | st.floats()
    | st.sampled_from([0.5, float("inf"), float("-inf"), float("nan"), 1e308])
)

scalars = st.none() | st.booleans() | numbers | texts

json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)

dates = st.dates() | st.datetimes(timezones=st.none() | st.just(datetime.UTC))

yaml_values: st.SearchStrategy[Any] = st.recursive(
    scalars | dates | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.integers() | st.none() | st.booleans(), inner, max_size=4)
    ),
    max_leaves=8,
)
