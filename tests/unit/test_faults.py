"""The table of faults names tests that exist, or says why there is none."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.faults import FAULTS, GROUPS, Fault

TESTS = Path(__file__).resolve().parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def names_in(module: str) -> frozenset[str]:
    """Return the tests of a file as they are named behind it: "::test" or "::TestClass::test"."""
    found = set()
    for node in ast.parse((TESTS / module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            names = [each.name for each in node.body if isinstance(each, FUNCTIONS)]
            found |= {f"::{node.name}::{name}" for name in names if name.startswith("test_")}
        elif isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            found.add(f"::{node.name}")
    return frozenset(found)


def name_of(fault: Fault) -> str:
    return f"{fault.group}{fault.number}"


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
class TestFault:
    def test_names_only_tests_that_exist(self, fault: Fault) -> None:
        for test in fault.tests:
            module, separator, rest = test.partition("::")
            assert separator + rest in names_in(module), test

    def test_is_tested_or_says_why_it_cannot_happen(self, fault: Fault) -> None:
        assert bool(fault.tests) != bool(fault.cannot_happen)
        assert len(set(fault.tests)) == len(fault.tests)
        for sentence in filter(None, (fault.cannot_happen, fault.left_open)):
            assert sentence[0].isupper() or sentence.startswith("vLLM")
            assert sentence.endswith(".")

    def test_says_where_it_was_met_and_what_was_seen(self, fault: Fault) -> None:
        assert fault.upstream
        assert fault.symptom


def test_each_has_a_name_of_its_own() -> None:
    repeated = [number for number, n in Counter(f.number for f in FAULTS).items() if n > 1]
    assert not repeated


def test_they_stand_in_the_order_of_groups_and_numbers() -> None:
    assert [*dict.fromkeys(fault.group for fault in FAULTS)] == list(GROUPS)
    assert [fault.number for fault in FAULTS] == sorted(fault.number for fault in FAULTS)


def test_a_test_that_is_not_there_would_be_seen() -> None:
    assert "::test_each_has_a_name_of_its_own" in names_in("unit/test_faults.py")
    assert "::TestFault::test_names_only_tests_that_exist" in names_in("unit/test_faults.py")
    assert "::test_nonsense" not in names_in("unit/test_faults.py")
