"""The progress line counts what is done, and guesses the rest from when the model was loaded."""

import time

import pytest

from raveval.progress import Progress, still_at, waiting_words


def test_a_line_at_the_end_whatever_the_speed() -> None:
    said: list[str] = []
    with Progress(10, say=said.append) as progress:
        progress.add(4, n_missing=1, n_tokens=100)
        progress.add(6, n_missing=0, n_tokens=100)
    assert len(said) == 1
    assert said[0].startswith("10/10 examples, 1 missing, ")
    assert "left" not in said[0]


def test_time_left_leaves_out_the_loading(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("raveval.progress.time.monotonic", lambda: now[0])
    progress = Progress(100, say=lambda _: None)
    now[0] = 60.0  # the model was loading
    progress.add(10, n_missing=0, n_tokens=600)
    assert "left" not in progress.line(now[0])
    now[0] = 70.0
    progress.add(10, n_missing=0, n_tokens=100)
    assert progress.line(now[0]) == "20/100 examples, 10 tokens/s, 1:20 left"


def test_hours_are_told_as_hours(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("raveval.progress.time.monotonic", lambda: now[0])
    progress = Progress(10_000, say=lambda _: None)
    progress.add(1, n_missing=0, n_tokens=0)
    now[0] = 1.0
    progress.add(1, n_missing=0, n_tokens=0)
    assert progress.line(now[0]).endswith("2:46:38 left")


def test_work_that_takes_long_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raveval.progress._SECONDS_BETWEEN_LINES", 0.05)
    said: list[str] = []

    def break_off() -> None:
        with still_at("preparing squad", say=said.append):
            while len(said) < 2:
                time.sleep(0.01)
            raise ValueError("a row")

    with pytest.raises(ValueError, match="a row"):
        break_off()
    assert said[0] == "still preparing squad, for 0:00 now"
    n_said = len(said)
    time.sleep(0.2)
    assert len(said) == n_said


def test_work_that_is_quick_is_not_spoken_of() -> None:
    said: list[str] = []
    with still_at("preparing squad", say=said.append):
        pass
    assert said == []


def test_a_replica_that_loads_is_told_from_one_without_a_place() -> None:
    needed, total = {"num_cpus": 2.0, "num_gpus": 1.0}, {"CPU": 4.0, "GPU": 1.0}
    loading = waiting_words(
        needed, total, {"CPU": 2.0}, 30.0
    )  # Ray leaves out what nobody has left
    assert loading == (
        "no replica is ready after 30 s: one is loading the model, unless other work has what it "
        "needs (2 CPUs and 1 GPUs each; of the cluster's 4 and 1, 2 and 0 are free)"
    )
    assert "none has a place yet" in waiting_words(needed, total, total, 30.0)
    assert "none has a place yet" in waiting_words(needed, {}, {}, 30.0)  # nodes are to come
