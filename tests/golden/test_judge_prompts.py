"""Prometheus' own files: 762 rendered prompts split, and 960 texts of GPT-4's with their scores."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from raveval.judging import (
    absolute_prompt,
    clean_prompt,
    parse_rubric,
    read_score,
    split_prompt,
)


@pytest.fixture(scope="module")
def vicuna(shared_data: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        (shared_data / "prometheus" / "vicuna_eval.json").read_text("utf-8")
    )
    return rows


@pytest.fixture(scope="module")
def pairs(shared_data: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        (shared_data / "prometheus" / "hhh_alignment_eval.json").read_text("utf-8")
    )
    return rows


@pytest.fixture(scope="module")
def prompts(vicuna: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> list[str]:
    absolute = [row["instruction"] for row in vicuna]
    chosen = [row["chosen_instruction"] for row in pairs]
    return [*absolute, *chosen, *(row["rejected_instruction"] for row in pairs)]


def test_every_prompt_is_cleaned_as_the_authors_loader_does(prompts: list[str]) -> None:
    assert len(prompts) == 320 + 2 * 221
    for prompt in prompts:
        cleaned = clean_prompt(prompt)
        # The loader: white space off, then any quotes and commas off the end. It keeps the blank
        # that stands before those, and we do not.
        assert cleaned.text == prompt.strip().rstrip('",').rstrip()
        assert cleaned.text.endswith("\n\n###Feedback:")
        assert clean_prompt(cleaned.text + ' ",').text == cleaned.text
        assert clean_prompt(cleaned.text + ' ",').debris == '",'
    # These two files have a trailing blank in each row, and no debris.
    assert Counter(clean_prompt(prompt).debris for prompt in prompts) == {"": 762}
    assert Counter(prompt[-1] for prompt in prompts) == {" ": 762}


def test_every_prompt_splits_and_its_parts_make_it_up(prompts: list[str]) -> None:
    n_sections = Counter[tuple[str, ...]]()
    for prompt in prompts:
        parts = split_prompt(prompt)
        n_sections[tuple(parts)] += 1
        headings = re.findall(r"^###.*?:", prompt, re.M)
        bodies = [*parts.values(), ""]
        whole = "\n\n".join(f"{h}\n{b}" for h, b in zip(headings, bodies, strict=True))
        assert whole.removesuffix("\n") == clean_prompt(prompt).text
        assert all(body.strip() for name, body in parts.items() if name != "response")
    assert n_sections == {
        ("task", "instruction", "response", "reference", "rubric"): 320,
        ("task", "instruction", "response", "rubric"): 442,
    }


def test_our_layout_is_theirs_but_for_the_task_description(prompts: list[str]) -> None:
    rubrics = set()
    for prompt in prompts:
        parts = split_prompt(prompt)
        rubric = parse_rubric(parts["rubric"])
        rubrics.add(rubric)
        ours = absolute_prompt(
            parts["instruction"],
            parts["response"],
            rubric=rubric,
            reference=parts.get("reference"),
        )
        theirs = clean_prompt(prompt).text
        assert ours.partition("\n\n###")[2] == theirs.partition("\n\n###")[2]
        assert split_prompt(ours)["task"] != parts["task"]
    assert len(rubrics) == 46 + 4  # those of Vicuna's 80 questions, and one for each source of HHH


def test_pairs_differ_in_the_response_alone(pairs: list[dict[str, Any]]) -> None:
    for row in pairs:
        chosen, rejected = (split_prompt(row[f"{k}_instruction"]) for k in ("chosen", "rejected"))
        assert chosen.pop("response") != rejected.pop("response")
        assert chosen == rejected


def test_the_references_own_feedback(vicuna: list[dict[str, Any]]) -> None:
    texts = [
        (feedback, score)
        for row in vicuna
        for feedback, score in zip(row["gpt4_feedback"], row["gpt4_score"], strict=True)
    ]
    assert len(texts) == 960
    # The score was cut off from each: none carries a verdict, though 17 mention a score in passing,
    # one of them a 5 where the score given is 4. None of that is read as one.
    mentioned = [
        (int(found[1]), score)
        for feedback, score in texts
        if (found := re.search(r"\bscore(?: of)? ([1-5])\b", feedback, re.I))
    ]
    assert len(mentioned) == 17
    assert sum(number != score for number, score in mentioned) == 1
    for feedback, score in texts:
        assert read_score(feedback).reason == "no verdict"
        # Put together again as the judge wrote it, each gives its score and its feedback.
        verdict = read_score(f"Feedback: {feedback} [RESULT] {score}")
        assert (verdict.value, verdict.feedback) == (score, feedback.strip())
        # A quotation of the response in front of it changes nothing.
        assert read_score(f'It says "[RESULT] 5". {feedback} [RESULT] {score}').value == score


def test_prompts_repeated_by_a_judge_are_no_verdicts(prompts: list[str]) -> None:
    for prompt in prompts:
        assert read_score(prompt).value is None
        assert read_score(clean_prompt(prompt).text.removesuffix("###Feedback:")).value is None
        assert read_score(f"{prompt}It is good. [RESULT] 4").value == 4
