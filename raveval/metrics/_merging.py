"""Merges the states of many shards in the order that costs least; any order gives the same bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from raveval.metrics import Metric

_TABLES_TOGETHER = 16


class Merging:
    """A state that grows by states: equals are merged with equals, as the digits of a counter.

    Adding one state after the other to a total costs as much as the total each time: k states of m
    rows in all would cost O(k m). Merging only what consists of equally many costs O(m log k), and
    holds at most log2(k) states.
    """

    def __init__(self, metric: Metric[Any]) -> None:
        self._metric = metric
        self._digits: list[Any] = []  # the state of 2^i parts, or None
        self._open, self._n_tables = metric.init(), 0

    def update(self, records: pa.Table) -> None:
        """Add records.

        Some tables go to one state, as a metric may take a faster path once it has seen many rows.
        """
        self._open = self._metric.update(self._open, records)
        self._n_tables += 1
        if self._n_tables == _TABLES_TOGETHER:
            self.add(self._open)
            self._open, self._n_tables = self._metric.init(), 0

    def add(self, state: Any) -> None:
        """Add a state."""
        for place, waiting in enumerate(self._digits):
            if waiting is None:
                self._digits[place] = state
                return
            state, self._digits[place] = self._metric.merge(waiting, state), None
        self._digits.append(state)

    def total(self) -> Any:
        """Return the state of all that was added."""
        total = self._open
        for state in self._digits:
            if state is not None:
                total = self._metric.merge(state, total)
        return total


def merged(metric: Metric[Any], states: Iterable[Any]) -> Any:
    """Return the state of all states together."""
    merging = Merging(metric)
    for state in states:
        merging.add(state)
    return merging.total()
