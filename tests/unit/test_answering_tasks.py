"""Task files of open generation: what the candidate is asked, what its judge goes by, refusals."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raveval import tasks
from raveval.errors import ConfigError, DataError, Refused
from raveval.judging import Rubric, absolute_prompt, relative_prompt
from raveval.judging.material import Material, OwnLayout, grounds_from
from raveval.tasks import Options
from raveval.tasks.sections import SamplingSection
from raveval.types import Example, Message, Sampling

RUBRIC = {
    "criteria": "Is it polite?",
    **{f"score{n}_description": f"Level {n}." for n in range(1, 6)},
}
PARTS = {
    "instruction": "{{ q }}",
    "reference": "{{ best }}",
    "context": "{{ about }}",
    "rubric": RUBRIC,
}
ROW = {"q": "Say hello.", "best": "Hello there!", "about": "", "kind": "polite"}


def write(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> str:
    """Write a task of open generation with these keys, as JSON, which is YAML."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"protocol": "open_generation", "source": {"path": "rows.jsonl"}, "grading": PARTS}
    (folder / "answers.yaml").write_text(json.dumps({**task, **keys}))
    return str(folder / "answers.yaml")


def load(
    folder: Path, rows: list[dict[str, Any]], options: Options | None = None, **keys: Any
) -> Sequence[Example]:
    task = tasks.load_task(write(folder, rows, **keys))
    return tasks.load_examples(task, options or Options(), seed=3)


def refusal(
    folder: Path, rows: list[dict[str, Any]], options: Options | None = None, **keys: Any
) -> str:
    with pytest.raises(Refused) as caught:
        load(folder, rows, options, **keys)
    return str(caught.value)


class TestTheCandidate:
    def test_it_is_asked_the_instruction(self, tmp_path: Path) -> None:
        (example,) = load(tmp_path, [ROW])
        assert (example.id, example.prompt) == ("0", "Say hello.")
        assert example.continuations == example.references == ()

    def test_it_sees_the_context_that_the_judge_sees(self, tmp_path: Path) -> None:
        (example,) = load(tmp_path, [{**ROW, "about": "It is morning."}])
        assert example.prompt == "It is morning.\n\nSay hello."

    def test_a_prompt_of_the_tasks_own(self, tmp_path: Path) -> None:
        (example,) = load(tmp_path, [ROW], prompt="Q: {{ q }}\nA: ")
        assert example.prompt == "Q: Say hello.\nA:"
        assert example.fields["instruction"] == "Say hello."

    def test_a_runs_system_prompt_is_its_alone(self, tmp_path: Path) -> None:
        options = Options(chat=True, system_prompt="Be brief.")
        (example,) = load(tmp_path, [ROW], options)
        assert example.prompt == (Message("system", "Be brief."), Message("user", "Say hello."))
        assert not any("Be brief." in text for text in example.fields.values())
        (bare,) = load(tmp_path, [ROW], Options(chat=True))
        assert bare.prompt == (Message("user", "Say hello."),)

    def test_shots_show_the_references_of_others(self, tmp_path: Path) -> None:
        rows = [{**ROW, "q": f"Q{n}", "best": f"A{n}"} for n in range(3)]
        for number, example in enumerate(load(tmp_path, rows, Options(num_fewshot=2))):
            shots = [part.split(" ") for part in str(example.prompt).split("\n\n")]
            assert shots.pop() == [f"Q{number}"]
            assert sorted(shots) == [[f"Q{n}", f"A{n}"] for n in range(3) if n != number]

    def test_shots_show_the_answer_that_a_task_says(self, tmp_path: Path) -> None:
        rows = [{**ROW, "q": f"Q{n}"} for n in range(2)]
        first, _ = load(tmp_path, rows, Options(num_fewshot=1, chat=True), answer="{{ kind }}!")
        assert first.prompt == (
            Message("user", "Q1"),
            Message("assistant", "polite!"),
            Message("user", "Q0"),
        )

    def test_a_shot_without_an_answer_is_refused(self, tmp_path: Path) -> None:
        rows = [ROW, {**ROW, "q": "Q", "best": " "}]
        message = refusal(tmp_path, rows, Options(num_fewshot=1))
        assert "rows.jsonl:2: as a shot it has no answer to show" in message
        assert "`answer`" in message
        assert len(load(tmp_path, rows)) == 2

    def test_its_sampling_is_greedy_and_goes_on_to_the_end(self, tmp_path: Path) -> None:
        task = tasks.load_task(write(tmp_path, [ROW]))
        assert task.sampling == Sampling(1024)
        shorter = tasks.with_sampling(task, SamplingSection(max_output_tokens=9))
        assert (shorter.sampling, shorter.judge_sampling) == (Sampling(9), task.judge_sampling)


class TestTheJudge:
    def test_its_grounds_are_the_fields(self, tmp_path: Path) -> None:
        (example,) = load(tmp_path, [ROW])
        assert example.fields == {
            "instruction": "Say hello.",
            "reference": "Hello there!",
            **RUBRIC,
        }
        rubric = Rubric("Is it polite?", tuple(f"Level {n}." for n in range(1, 6)))
        grounds = grounds_from(example.fields)
        shown = {"rubric": rubric, "reference": "Hello there!"}
        assert grounds.absolute("Hi.") == absolute_prompt("Say hello.", "Hi.", **shown)  # type: ignore[arg-type]
        assert grounds.relative("Hi.", "Yo.") == relative_prompt(
            "Say hello.",
            ("Hi.", "Yo."),
            **shown,  # type: ignore[arg-type]
        )

    def test_its_grounds_are_taken_out_of_a_whole_prompt(self, tmp_path: Path) -> None:
        rubric = Rubric("Short?", tuple("abcde"))
        whole = absolute_prompt(
            "Say hello.", "An old answer.", rubric=rubric, reference="Hi.", context="Morning."
        )
        row = {"whole": f'{whole} ",'}
        (example,) = load(tmp_path, [row], grading={"prompt": "{{ whole }}"})
        assert example.prompt == "Morning.\n\nSay hello."
        assert grounds_from(example.fields) == Material("Say hello.", rubric, "Hi.", "Morning.")
        assert not any("An old answer." in text for text in example.fields.values())

    @pytest.mark.parametrize(
        ("whole", "words"),
        [
            ("Grade this: hello", "headings found: none"),
            (
                absolute_prompt(
                    "###Response to evaluate:\nHi", "Yo", rubric=Rubric("c", tuple("abcde"))
                ),
                "stands 2 times as a line",
            ),
            (
                relative_prompt("Say", ("Hi", "Yo"), rubric=Rubric("c", tuple("abcde"))),
                "no rubric: '[c]'",
            ),
        ],
    )
    def test_a_whole_prompt_that_is_not_certain_is_refused(
        self, whole: str, words: str, tmp_path: Path
    ) -> None:
        message = refusal(tmp_path, [{"whole": whole}], grading={"prompt": "{{ whole }}"})
        assert "rows.jsonl:1: grading.prompt: " in message
        assert words in message

    def test_a_rubric_of_the_row_and_of_a_file(self, tmp_path: Path) -> None:
        rubric = {**RUBRIC, "criteria": "Is it {{ kind }}?"}
        (example,) = load(tmp_path, [ROW], grading={**PARTS, "rubric": rubric})
        assert example.fields["criteria"] == "Is it polite?"
        (tmp_path / "rubric.yaml").write_text(json.dumps({**RUBRIC, "criteria": "{{ braces }}?"}))
        (example,) = load(tmp_path, [ROW], grading={**PARTS, "rubric": "rubric.yaml"})
        assert example.fields["criteria"] == "{{ braces }}?"

    def test_a_layout_of_the_tasks_own(self, tmp_path: Path) -> None:
        grading = {
            "template": "Q: {{ q }}\n{% if best %}Best: {{ best }}\n{% endif %}A: {{ response }}\n",
            "pair_template": "{{ q }}\n1 {{ response_a }}\n2 {{ response_b }}\nBetter:",
        }
        # A column of the slot's name is not what stands there.
        row = {**ROW, "response": "An old answer."}
        (example,) = load(tmp_path, [row], grading=grading, prompt="{{ q }}")
        assert grounds_from(example.fields) == OwnLayout(
            ("Q: Say hello.\nBest: Hello there!\nA: ", "\n"),
            ("Say hello.\n1 ", "\n2 ", "\nBetter:"),
        )

    def test_its_sampling_is_prometheus_unless_a_task_or_run_says_otherwise(
        self, tmp_path: Path
    ) -> None:
        task = tasks.load_task(write(tmp_path, [ROW]))
        stop = ("###Task Description:", "###The instruction to evaluate:")
        assert task.judge_sampling == Sampling(1024, 1.0, 0.9, 1.03, stop)
        task = tasks.load_task(write(tmp_path, [ROW], judge_sampling="prometheus_v1"))
        assert task.judge_sampling == Sampling(256, 1.0, 0.9, 1.03, stop)
        colder = tasks.with_judge_sampling(task, SamplingSection(temperature=0.5))
        assert colder.judge_sampling == Sampling(256, 0.5, 0.9, 1.03, stop)
        assert colder.sampling == task.sampling == Sampling(1024)

    def test_how_often_it_is_asked(self, tmp_path: Path) -> None:
        grading = {**PARTS, "samples": 5, "max_attempts": 2}
        task = tasks.load_task(write(tmp_path, [ROW], grading=grading))
        assert task.grading is not None
        settings = task.grading.settings()
        assert (settings.n_samples, settings.max_attempts) == (5, 2)


class TestRefusals:
    @pytest.mark.parametrize(
        ("grading", "words"),
        [
            ({}, "grading: instruction, rubric: missing (or give `prompt`, the whole prompt)"),
            ({"instruction": "{{ q }}"}, "grading: rubric: missing"),
            ({**PARTS, "response": "{{ a }}"}, "grading: response: protocol open_generation"),
            ({**PARTS, "prompt": "{{ q }}"}, "`prompt` is the whole prompt; leave the others out"),
            ({"prompt": "{{ q }}", "template": "{{ response }}"}, "leave the others out"),
            ({"template": "{{ response }}", "rubric": RUBRIC}, "`template` is the whole prompt"),
            ({**PARTS, "pair_template": "{{ response_a }}{{ response_b }}"}, "pair_template"),
            ({"prompts": ["{{ q }}", "{{ q }}"]}, "instruction, rubric: missing"),
            ({"template": "{{ q }}"}, "grading.template: has to show `{{ response }}` once"),
            ({"template": "{{ response | trim }}"}, "once, as it is"),
            ({"template": "{{ response }}{{ response }}"}, "once, as it is"),
            ({"template": "{% if response %}{{ response }}{% endif %}"}, "once, as it is"),
            ({"template": "{{ response ~ '!' }}"}, "once, as it is"),
            (
                {"template": "{{ response }}", "pair_template": "{{ response_a }}"},
                "grading.pair_template: has to show `{{ response_b }}` once",
            ),
            ({"template": "{{ response }}"}, "prompt: missing; `grading.template` does not say"),
            ({**PARTS, "samples": 0}, "grading.samples"),
        ],
    )
    def test_what_makes_no_judges_prompt(
        self, grading: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            tasks.load_task(write(tmp_path, [ROW], grading=grading))
        assert words in str(caught.value)
        assert "answers.yaml" in str(caught.value)

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"grading": None}, "grading: missing; protocol open_generation needs it"),
            ({"references": "[q]"}, "references: protocol open_generation has no use for it"),
            ({"reference_ratings": "3"}, "reference_ratings: protocol open_generation has no use"),
            ({"judge_sampling": "prometheus_v3"}, "no preset 'prometheus_v3'"),
            ({"judge_sampling": {"temprature": 1}}, "did you mean 'temperature'?"),
            ({"judge_sampling": {"top_k": 4}}, "judge_sampling.top_k"),
        ],
    )
    def test_keys_of_other_protocols(
        self, keys: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            tasks.load_task(write(tmp_path, [ROW], **keys))
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"q": " "}, "grading.instruction: empty"),
            ({"best": None}, "grading.reference: '{{ best }}'"),
            ({"q": "\ud800"}, "half of a surrogate pair"),
        ],
    )
    def test_rows_that_cannot_be_graded(
        self, change: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        message = refusal(tmp_path, [ROW, {**ROW, **change}])
        assert "rows.jsonl:2: " in message
        assert words in message

    def test_a_candidate_has_to_be_asked_something(self, tmp_path: Path) -> None:
        assert "prompt: empty; there is nothing" in refusal(tmp_path, [ROW], prompt="{{ about }} ")

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            (
                "{% for c in ['x', 'y'] %}{{ response }}{% endfor %}",
                "grading.template: does not show `{{ response }}` once for this row",
            ),
            ("{% if about %}{{ response }}{% endif %}", "once for this row"),
            ("{{ response }} {{ row['response'] }}", "once for this row"),
        ],
    )
    def test_a_template_that_shows_no_response_of_this_row(
        self, template: str, words: str, tmp_path: Path
    ) -> None:
        message = refusal(tmp_path, [ROW], grading={"template": template}, prompt="{{ q }}")
        assert words in message

    def test_a_pair_is_shown_in_its_order(self, tmp_path: Path) -> None:
        grading = {
            "template": "{{ response }}",
            "pair_template": "{{ response_b }} {{ response_a }}",
        }
        message = refusal(tmp_path, [ROW], grading=grading, prompt="{{ q }}")
        assert "has to show `{{ response_a }}` and `{{ response_b }}` in this order" in message

    def test_a_sampling_of_a_judge_where_there_is_none(self) -> None:
        for name, hint in (("arc_easy", "multiple_choice"), ("demo_grading", "write `sampling`")):
            with pytest.raises(ConfigError, match=rf"'{name}': judge_sampling: .*{hint}"):
                tasks.with_judge_sampling(tasks.load_task(name), SamplingSection(top_p=0.5))

    def test_a_baseline_that_cannot_be_shown(self, tmp_path: Path) -> None:
        tasks.check_baseline(tasks.load_task(write(tmp_path, [ROW])))
        tasks.check_baseline(tasks.load_task("demo_answers"))
        grading = {"template": "{{ response }}"}
        task = tasks.load_task(write(tmp_path, [ROW], grading=grading, prompt="{{ q }}"))
        with pytest.raises(ConfigError, match="pair_template"):
            tasks.check_baseline(task)
        with pytest.raises(ConfigError, match="'squad': baseline: no judge grades"):
            tasks.check_baseline(tasks.load_task("squad"))


class TestDistinct:
    def test_a_row_that_asks_the_same_is_left_out_and_counted(self, tmp_path: Path) -> None:
        rows = [{**ROW, "old": "x"}, {**ROW, "old": "y"}, {**ROW, "q": "Go."}, ROW]
        assert [e.id for e in load(tmp_path, rows)] == ["0", "1", "2", "3"]
        assert [e.id for e in load(tmp_path, rows, distinct=True)] == ["0", "2"]
        task = tasks.load_task(write(tmp_path, rows, distinct=True))
        source = tasks.provenance(task, Options())
        assert source["repeated_rows"] == "2"
        assert tasks.source_remarks(source) == ["2 rows repeat an earlier one, and are left out"]

    @pytest.mark.parametrize(
        "change", [{"q": "Go."}, {"best": "Hi."}, {"about": "Now."}, {"kind": "short"}]
    )
    def test_a_row_that_asks_or_grades_otherwise_stays(
        self, change: dict[str, str], tmp_path: Path
    ) -> None:
        rubric = {**RUBRIC, "score3_description": "{{ kind }}"}
        rows = [ROW, {**ROW, **change}]
        found = load(tmp_path, rows, distinct=True, grading={**PARTS, "rubric": rubric})
        assert [example.id for example in found] == ["0", "1"]

    def test_rows_of_one_id_that_differ_are_refused(self, tmp_path: Path) -> None:
        rows = [{**ROW, "id": "x"}, {**ROW, "id": "x"}, {**ROW, "id": "x", "best": "Hi."}]
        assert "rows.jsonl:3: id 'x' is already that of" in refusal(tmp_path, rows, distinct=True)
        assert len(load(tmp_path, rows[:2], distinct=True)) == 1

    def test_a_limit_counts_those_that_stay(self, tmp_path: Path) -> None:
        rows = [{**ROW, "q": f"Q{n // 3}"} for n in range(9)]
        options = Options(limit=2)
        assert [e.id for e in load(tmp_path, rows, options, distinct=True)] == ["0", "3"]
        task = tasks.load_task(write(tmp_path, rows, distinct=True))
        source = tasks.provenance(task, options)
        assert source["repeated_rows"] == "2"  # of those that were read
        assert tasks.source_remarks({**source, "limit": "2"}) == [
            f"only the first 2 different rows of {tmp_path / 'rows.jsonl'}",
            "2 rows repeat an earlier one, and are left out",
        ]

    def test_it_is_for_tasks_of_any_protocol(self, tmp_path: Path) -> None:
        (tmp_path / "rows.jsonl").write_text('{"q": "Q", "a": ["A"]}\n' * 3)
        (tmp_path / "qa.yaml").write_text(
            "protocol: question_answering\nsource: {path: rows.jsonl}\ndistinct: true\n"
            "prompt: '{{ q }}'\nreferences: a\n"
        )
        task = tasks.load_task(str(tmp_path / "qa.yaml"))
        assert len(tasks.load_examples(task, Options(), seed=0)) == 1

    def test_rows_that_cannot_be_read_count_towards_the_limit(self, tmp_path: Path) -> None:
        rows = [{**ROW, "q": ""}, ROW, {**ROW, "q": ""}]
        with pytest.raises(DataError, match="cannot read 1 of 2 rows"):
            load(tmp_path, rows, Options(limit=2))
