"""Runs whose replicas, nodes, drivers and whole cluster are killed at random."""

import logging
import os
from pathlib import Path

import pytest

from tests.chaos import KINDS, strike

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
log = logging.getLogger(__name__)

N_ROUNDS = len(KINDS) * (2 if os.environ.get("CI") else 1)


def test_no_kill_loses_doubles_or_changes_an_example(tmp_path: Path) -> None:
    tally = strike(tmp_path, n_rounds=N_ROUNDS, seed=1, say=log.info)
    assert tally.is_clean, str(tally)
    assert tally.kills.total() == N_ROUNDS
    assert tally.kills.keys() == set(KINDS)
    assert tally.n_runs > 0
