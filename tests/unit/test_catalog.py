"""Every task of the catalogue: its card, the hub's columns, and real files in the same layout."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raveval import cli, registry, tasks
from raveval.errors import ConfigError, DataError
from raveval.judging import SYSTEM_LINE, split_prompt
from raveval.judging.material import Material, grounds_from
from raveval.tasks import Options
from raveval.types import Example, Message

DEMO = (
    *("demo_choice", "demo_entailment", "demo_qa", "demo_text"),
    *("demo_grading", "demo_ranking", "demo_pairs", "demo_answers"),
)

# One row as the hub's dataset has it, and what has to become of it: prompt (of a document: text),
# continuations, gold, references.
HUB_ROWS: dict[str, tuple[dict[str, Any], tuple[str, tuple[str, ...], int | None, list[str]]]] = {
    "arc_easy": (
        {
            "id": "x",
            "question": "What melts?",
            "choices": {"text": ["stone", "ice", "air"], "label": ["1", "2", "3"]},
            "answerKey": "2",
        },
        ("Question: What melts?\nAnswer:", (" stone", " ice", " air"), 1, []),
    ),
    "piqa": (
        {"goal": "Cool a room.", "sol1": "Open a window.", "sol2": "Light a fire.", "label": 0},
        ("Question: Cool a room.\nAnswer:", (" Open a window.", " Light a fire."), 0, []),
    ),
    "boolq": (
        {"question": "is ice cold", "answer": True, "passage": "Ice is cold."},
        ("Ice is cold.\nQuestion: is ice cold?\nAnswer:", (" no", " yes"), 1, []),
    ),
    "rte": (
        {"sentence1": "It rains.", "sentence2": "It is dry.", "label": 1, "idx": 4},
        ("It rains.\nQuestion: It is dry. True or False?\nAnswer:", (" True", " False"), 1, []),
    ),
    "cb": (
        {"premise": "Does he know?", "hypothesis": "he knows", "idx": 0, "label": 2},
        (
            "Does he know?\nQuestion: he knows. True, False, or Neither?\nAnswer:",
            (" True", " False", " Neither"),
            2,
            [],
        ),
    ),
    "copa": (
        {
            "premise": "The ice melted.",
            "choice1": "The sun shone.",
            "choice2": "I slept.",
            "question": "cause",
            "label": 0,
        },
        ("The ice melted because", (" the sun shone.", " i slept."), 0, []),
    ),
    "sst2": (
        {"sentence": "a fine film . ", "label": 1, "idx": 0},
        (
            "a fine film .\nQuestion: Is this sentence positive or negative?\nAnswer:",
            (" negative", " positive"),
            1,
            [],
        ),
    ),
    "hellaswag": (
        {
            "activity_label": "Washing up",
            "ctx_a": "[header] How to wash up [title] Fill the sink.",
            "ctx_b": "then you",
            "endings": ["take a  plate. [step] Rub it.", "sing.", "go.", "sleep [title] Wake."],
            "label": "0",
        },
        (
            "Washing up: How to wash up. Fill the sink. Then you",
            (" take a plate. Rub it.", " sing.", " go.", " sleep. Wake."),
            0,
            [],
        ),
    ),
    "winogrande": (
        {
            "sentence": "Ann told Eve that _ was late.",
            "option1": "Ann",
            "option2": "Eve",
            "answer": "2",
        },
        ("Ann told Eve that", (" Ann was late.", " Eve was late."), 1, []),
    ),
    "openbookqa": (
        {
            "id": "7-1",
            "question_stem": "The sun is",
            "choices": {"text": ["cold", "hot", "wet", "near"], "label": ["A", "B", "C", "D"]},
            "answerKey": "B",
        },
        ("Question: The sun is\nAnswer:", (" cold", " hot", " wet", " near"), 1, []),
    ),
    "sciq": (
        {
            "question": "What is ice?",
            "distractor1": "a gas",
            "distractor2": "a metal",
            "distractor3": "a plant",
            "correct_answer": "water",
            "support": "",
        },
        ("Question: What is ice?\nAnswer:", (" a gas", " a metal", " a plant", " water"), 3, []),
    ),
    "mmlu": (
        {
            "question": "1+1?",
            "subject": "high_school_x",
            "choices": ["1", "2", "3", "4"],
            "answer": 1,
        },
        (
            "The following are multiple choice questions (with answers) about high school x.\n\n"
            "1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:",
            (" A", " B", " C", " D"),
            1,
            [],
        ),
    ),
    "squad": (
        {
            "id": "1",
            "title": "Ice",
            "context": "Ice is cold.",
            "question": "What is cold?",
            "answers": {"text": ["Ice", "ice"], "answer_start": [0, 0]},
        },
        (
            "Ice is cold.\n\nQuestion: What is cold?\n\nAnswer:",
            (),
            None,
            ["Ice", "ice"],
        ),
    ),
    "squad2": (
        {
            "id": "1",
            "title": "Ice",
            "context": "Ice is cold.",
            "question": "What is hot?",
            "answers": {"text": [], "answer_start": []},
        },
        (
            "Answer each question with the shortest phrase of its passage that answers it, or with "
            '"unanswerable" if the passage does not answer it.\n\n'
            "Ice is cold.\n\nQuestion: What is hot?\n\nAnswer:",
            (),
            None,
            [],
        ),
    ),
    "nq_open": (
        {"question": "who was first", "answer": ["Ann", "Eve"]},
        ("Question: who was first?\nAnswer:", (), None, ["Ann", "Eve"]),
    ),
    "triviaqa": (
        {
            "question": "Who was first?",
            "question_id": "t_1",
            "answer": {"value": "Ann", "aliases": ["Anna", "Ann"], "normalized_aliases": ["ann"]},
        },
        ("Question: Who was first?\nAnswer:", (), None, ["Ann", "Anna"]),
    ),
    "wikitext2": ({"page": " = A = \n b \n"}, (" = A = \n b \n", (), None, [])),
    "lambada": ({"text": "He sat on the chair"}, ("He sat on the", (" chair",), None, [])),
}
HUB_ROWS["arc_challenge"] = HUB_ROWS["arc_easy"]


def whole_prompt(instruction: str, response: str, *, end: str) -> str:
    """A prompt as the published files of evaluators hold it."""
    rubric = "[Short?]\n" + "\n".join(f"Score {n}: {n} points." for n in range(1, 6))
    return (
        "###Task Description:\nGrade it.\n\n"
        f"###The instruction to evaluate:\n{instruction}\n\n"
        f"###Response to evaluate:\n{response}\n\n"
        f"###Score Rubrics:\n{rubric}\n\n###Feedback:{end}"
    )


GRADED = {
    "idx": 83,
    "response_source": "some_model",
    "category": "writing",
    "instruction": whole_prompt("Say hello.", "Hello!", end=' ",'),
    "gpt4_score": [3, 2, 3],
    "human_score": [4],
}
RANKED = {
    "chosen_instruction": whole_prompt("Say hello.", "Hello!", end=' ",'),
    "rejected_instruction": whole_prompt("Say hello.", "No!", end=" "),
}
TURNS_A, TURNS_B = (
    [
        {"role": role, "content": f"{text} by {name}" if role == "assistant" else text}
        for role, text in zip(("user", "assistant") * 2, ("Q1", "A1", "Q2", "A2"), strict=True)
    ]
    for name in "ab"
)
VOTE = {
    "question_id": 81,
    "model_a": "x",
    "model_b": "y",
    "winner": "model_b",
    "judge": "expert_1",
    "conversation_a": TURNS_A,
    "conversation_b": TURNS_B,
    "turn": 1,
}

# One row of each layout that evaluators are given, and what has to become of it: instruction,
# responses by name, which of them is preferred, reference ratings, group, cluster.
JUDGED_ROWS: dict[
    str, tuple[dict[str, Any], tuple[str, dict[str, str], str | None, list[float], Any, Any]]
] = {
    "vicuna_bench": (GRADED, ("Say hello.", {"": "Hello!"}, None, [3, 2, 3], "writing", "83")),
    "mt_bench": (GRADED, ("Say hello.", {"": "Hello!"}, None, [3, 2, 3], "writing", "83")),
    "flask_eval": (GRADED, ("Say hello.", {"": "Hello!"}, None, [3, 2, 3], None, "Say hello.")),
    "feedback_bench": (
        {
            "orig_instruction": "Say hello.",
            "orig_response": "Hello! {{ 1 }}",
            "orig_reference_answer": "Hello there!",
            "orig_criteria": "Is it polite?",
            **{f"orig_score{n}_description": f"{n} points." for n in range(1, 6)},
            "orig_score": "4",
            "orig_feedback": "Fine.",
        },
        ("Say hello.", {"": "Hello! {{ 1 }}"}, None, [4], None, "Say hello."),
    ),
    "hhh_alignment": (
        {"source": "other", **RANKED},
        ("Say hello.", {"a": "No!", "b": "Hello!"}, "b", [], "other", "Say hello."),
    ),
    "mt_bench_human_prometheus": (
        {"tie": 1, **RANKED},
        ("Say hello.", {"a": "No!", "b": "Hello!"}, "tie", [], None, "Say hello."),
    ),
    "mt_bench_human": (VOTE, ("Q1", {"a": "A1 by a", "b": "A1 by b"}, "b", [], "turn 1", "81")),
    "autoj_pairwise": (
        {
            "scenario": "chitchat",
            "label": 2,
            "prompt": "Say hello.",
            "response 1": " Hello!",
            "response 2": "\nHi!\n",
        },
        ("Say hello.", {"a": "Hello!", "b": "Hi!"}, "tie", [], "chitchat", "Say hello."),
    ),
    "llmbar": (
        {"input": "Say hello.", "output_1": "Hello!", "output_2": "No!", "label": 2},
        ("Say hello.", {"a": "Hello!", "b": "No!"}, "b", [], None, None),
    ),
}

# Two rows that tell of the same question, in each layout that candidates are asked from, and what
# has to become of both: id, prompt, group, cluster.
ANSWERED_ROWS: dict[str, tuple[list[dict[str, Any]], tuple[str, str, str | None, str | None]]] = {
    "vicuna_answers": (
        [GRADED, {**GRADED, "instruction": whole_prompt("Say hello.", "No!", end=" ")}],
        ("83", "Say hello.", "writing", None),
    ),
    "flask_answers": (
        [GRADED, {**GRADED, "instruction": whole_prompt("Say hello.", "No!", end=" ")}],
        ("0", "Say hello.", None, "Say hello."),
    ),
    "feedback_answers": (
        [
            JUDGED_ROWS["feedback_bench"][0],
            {**JUDGED_ROWS["feedback_bench"][0], "orig_response": "No!", "orig_score": "1"},
        ],
        ("0", "Say hello.", None, "Say hello."),
    ),
}

# file, its rows, how often each gold stands there
REAL: dict[str, tuple[str, int, dict[int | None, int]]] = {
    "arc_easy": (
        "choice/ai2_arc_ARC-Easy_validation.jsonl",
        570,
        {0: 158, 1: 152, 2: 142, 3: 118},
    ),
    "boolq": ("choice/boolq_validation.jsonl", 3270, {1: 2033, 0: 1237}),
    "piqa": ("choice/piqa_validation.jsonl", 1838, {0: 910, 1: 928}),
    "sst2": ("choice/glue_sst2_validation.jsonl", 872, {0: 428, 1: 444}),
    "rte": ("choice/glue_rte_validation.jsonl", 277, {0: 146, 1: 131}),
    "cb": ("choice/super_glue_cb_validation.jsonl", 56, {0: 23, 1: 28, 2: 5}),
    "nq_open": ("choice/nq_open_validation.jsonl", 3610, {None: 3610}),
    "mmlu": ("mmlu/validation.jsonl", 1531, {0: 381, 1: 379, 2: 387, 3: 384}),
    "squad": ("squad/dev-v1.1.json", 10570, {None: 10570}),
    "squad2": ("squad/dev-v2.0.json", 11873, {None: 11873}),
    "wikitext2": ("text/wikitext2.valid.raw", 60, {None: 60}),
    "lambada": ("text/lambada_openai.first1000.jsonl", 1000, {None: 1000}),
}


def load(name: str, path: Path, **options: Any) -> Sequence[Example]:
    return tasks.load_examples(tasks.load_task(name), Options(path=str(path), **options), seed=7)


@pytest.mark.parametrize("name", tasks.names())
def test_a_task_has_a_card_and_known_parts(name: str) -> None:
    task = tasks.load_task(name)
    card = task.card
    assert card.description
    assert card.license
    assert card.language
    assert card.kind
    assert task.protocol in registry.names("protocols")
    assert set(task.metrics or ()) <= set(registry.names("metrics"))
    assert name in DEMO or (card.homepage.startswith("https://") and card.paper and card.notes)
    assert (task.source.path is not None) == (name in DEMO)


def test_the_catalogue_holds_what_is_promised() -> None:
    known = set(HUB_ROWS) | set(JUDGED_ROWS) | set(ANSWERED_ROWS) | set(DEMO)
    assert known == set(tasks.names())


@pytest.mark.parametrize("name", sorted(HUB_ROWS))
def test_a_row_of_the_hub_is_asked_as_intended(name: str, tmp_path: Path) -> None:
    row, (asked, continuations, gold, references) = HUB_ROWS[name]
    path = tmp_path / "row.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    (example,) = load(name, path, num_fewshot=0)
    assert (example.text or example.prompt) == asked
    assert example.continuations == continuations
    assert example.gold == gold
    assert list(example.references) == references
    task = tasks.load_task(name)
    has_answer = task.protocol == "multiple_choice" and asked.endswith("\nAnswer:")
    assert example.unconditional_prompt == ("Answer:" if has_answer else None)


def load_row(name: str, row: dict[str, Any], folder: Path) -> Example:
    """Load one row as the turns of a chat."""
    path = folder / "row.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    (example,) = load(name, path, chat=True)
    return example


def shown_to_judge(example: Example) -> list[dict[str, str]]:
    """Return the sections of what a judge is shown, as one prompt or two."""
    prompts = []
    for prompt in filter(None, (example.prompt, example.second_prompt)):
        assert isinstance(prompt, tuple)
        system, user = prompt
        assert system == Message("system", SYSTEM_LINE)
        assert user.content.endswith("\n\n###Feedback:")
        prompts.append(split_prompt(user.content))
    return prompts


@pytest.mark.parametrize("name", sorted(JUDGED_ROWS))
def test_a_row_is_shown_to_a_judge_as_intended(name: str, tmp_path: Path) -> None:
    row, (instruction, responses, preferred, ratings, group, cluster) = JUDGED_ROWS[name]
    example = load_row(name, row, tmp_path)
    prompts = shown_to_judge(example)
    assert {prompt["instruction"] for prompt in prompts} == {instruction}
    if tasks.load_task(name).protocol == "relative_grading":
        a, b = responses.values()
        assert [(p["response_a"], p["response_b"]) for p in prompts] == [(a, b), (b, a)]
    else:
        assert [prompt["response"] for prompt in prompts] == list(responses.values())
    assert example.preferred == preferred
    assert list(example.reference_ratings) == ratings
    assert (example.group, example.cluster) == (group, cluster)


@pytest.mark.parametrize("name", sorted(ANSWERED_ROWS))
def test_a_question_is_asked_once_whatever_was_answered(name: str, tmp_path: Path) -> None:
    rows, (id, prompt, group, cluster) = ANSWERED_ROWS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (example,) = load(name, path, chat=True, system_prompt="Be kind.")
    assert example.id == id
    assert example.prompt == (Message("system", "Be kind."), Message("user", prompt))
    assert (example.group, example.cluster) == (group, cluster)
    judged = grounds_from(example.fields)
    assert isinstance(judged, Material)
    assert judged.instruction == "Say hello."
    assert (judged.reference, judged.rubric.criteria) == (
        ("Hello there!", "Is it polite?") if name == "feedback_answers" else ("", "Short?")
    )
    source = tasks.provenance(tasks.load_task(name), Options(path=str(path)))
    assert source == {"examples": str(path), "repeated_rows": "1"}
    (alone,) = load(name, path, limit=1)
    assert (alone.id, alone.fields) == (id, example.fields)


def test_feedback_bench_shows_the_rubric_and_the_reference_of_its_row(tmp_path: Path) -> None:
    (prompt,) = shown_to_judge(
        load_row("feedback_bench", JUDGED_ROWS["feedback_bench"][0], tmp_path)
    )
    assert prompt["reference"] == "Hello there!"
    assert prompt["rubric"].splitlines() == [
        "[Is it polite?]",
        *(f"Score {n}: {n} points." for n in range(1, 6)),
    ]


def test_mt_bench_human_shows_both_turns_where_the_second_was_voted_on(tmp_path: Path) -> None:
    # One answer of the published set is empty; it is shown as such.
    mute = [{**turn, "content": ""} if turn["content"] == "A2 by b" else turn for turn in TURNS_B]
    row = {**VOTE, "turn": 2, "winner": "tie", "conversation_b": mute}
    example = load_row("mt_bench_human", row, tmp_path)
    a, b = shown_to_judge(example)
    assert a["instruction"] == b["instruction"]
    assert a["instruction"].endswith("\n\nFirst turn: Q1\n\nSecond turn: Q2")
    assert a["response"] == "First turn: A1 by a\n\nSecond turn: A2 by a"
    assert b["response"] == "First turn: A1 by b\n\nSecond turn: "
    assert (example.preferred, example.group) == ("tie", "turn 2")
    assert shown_to_judge(load_row("mt_bench_human", {**row, "turn": 1}, tmp_path)) != [a, b]


@pytest.mark.parametrize(
    ("name", "change", "preferred"),
    [
        ("autoj_pairwise", {"label": 0}, "a"),
        ("autoj_pairwise", {"label": 1}, "b"),
        ("llmbar", {"label": 1}, "a"),
        ("mt_bench_human", {"winner": "model_a"}, "a"),
        ("mt_bench_human_prometheus", {"tie": 0}, "b"),
        (
            "hhh_alignment",
            {"rejected_instruction": whole_prompt("Say hello.", "No!!", end=" ")},
            "a",
        ),
    ],
)
def test_what_people_prefer_is_read(
    name: str, change: dict[str, Any], preferred: str, tmp_path: Path
) -> None:
    example = load_row(name, {**JUDGED_ROWS[name][0], **change}, tmp_path)
    assert example.preferred == preferred


def test_pairs_without_a_column_for_ties_have_none(tmp_path: Path) -> None:
    assert load_row("mt_bench_human_prometheus", RANKED, tmp_path).preferred == "b"


@pytest.mark.parametrize(("name", "label"), [("autoj_pairwise", 3), ("llmbar", 3)])
def test_a_label_that_means_nothing_is_refused(name: str, label: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="preferred"):
        load_row(name, {**JUDGED_ROWS[name][0], "label": label}, tmp_path)


FETCHED = [name for name in tasks.names() if tasks.load_task(name).source.fetch is not None]


def test_files_to_fetch_are_those_that_the_hub_has_not() -> None:
    fetched = (set(JUDGED_ROWS) | set(ANSWERED_ROWS)) - {"feedback_bench", "feedback_answers"}
    assert set(FETCHED) == fetched - {"mt_bench_human"}


@pytest.mark.parametrize("name", FETCHED)
def test_a_file_to_fetch_is_named_with_its_repository(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.*\.jsonl?, from .*https://.*--path FILE"):
        tasks.load_examples(tasks.load_task(name), Options(), seed=0)
    card = CliRunner().invoke(cli.app, ["tasks", name])
    assert card.exit_code == 0
    source = next(line for line in card.output.splitlines() if line.startswith("  source "))
    assert "https://github.com/" in source
    assert "--path" in source


@pytest.mark.parametrize("n_shots", [0, 5])
@pytest.mark.parametrize("name", sorted(REAL))
def test_real_files_are_read_whole(name: str, n_shots: int, shared_data: Path) -> None:
    file, n_rows, golds = REAL[name]
    task = tasks.load_task(name)
    if task.text is not None and n_shots:
        return  # documents have no shots
    pool = str(shared_data / "mmlu" / "dev.jsonl") if name == "mmlu" else None
    examples = load(name, shared_data / file, num_fewshot=n_shots, fewshot_path=pool)
    assert len(examples) == len({example.id for example in examples}) == n_rows
    assert Counter(example.gold for example in examples) == golds
    bare = task.model_copy(update={"instruction": ""})
    questions = tasks.load_examples(
        bare, Options(path=str(shared_data / file), num_fewshot=0), seed=7
    )
    for example, question in zip(examples, questions, strict=True):
        assert isinstance(example.prompt, str)
        assert not example.prompt.endswith(" ")
        for continuation in example.continuations:
            assert continuation.startswith(" ")
            assert continuation[1:] == continuation.lstrip(" ")
        # the question stands at the end, and not among its own shots
        assert example.prompt.endswith(str(question.prompt))
        assert example.text or f"\n{example.prompt}".count(f"\n{question.prompt}") == 1
    n_shown = sum(len(str(example.prompt)) for example in examples)
    n_bare = sum(len(str(question.prompt)) for question in questions)
    assert n_shown >= (1 + n_shots // 2) * n_bare  # about n_shots more of the same


def test_mmlu_shows_the_subjects_first_five_in_order(shared_data: Path) -> None:
    file = shared_data / "mmlu" / "validation.jsonl"
    dev = shared_data / "mmlu" / "dev.jsonl"
    examples = load("mmlu", file, fewshot_path=str(dev))
    pool: dict[str, list[str]] = {}
    for line in dev.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        pool.setdefault(row["subject"], []).append(row["question"].strip())
    groups = Counter(example.group for example in examples)
    assert len(groups) == 57
    assert set(groups) == set(pool)
    n_short = n_compared = 0
    for example in examples:
        prompt, group = str(example.prompt), example.group or ""
        subject = group.replace("_", " ")
        assert prompt.startswith(
            f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        )
        n_shots = prompt.count("\nAnswer:") - 1
        n_short += n_shots == 4
        assert n_shots in (4, 5)
        shown = [part.split("\nA. ")[0] for part in prompt.split("\n\n", 1)[1].split("\n\n")]
        if len(shown) == n_shots + 1:  # few questions hold blank lines themselves
            n_compared += 1
            assert shown[:-1] == [q for q in pool[group] if q != shown[-1]]
    assert n_compared > 1400
    assert n_short == 1  # one question of the validation split is also a shot of its subject


def test_lambada_asks_for_the_last_word(shared_data: Path) -> None:
    examples = load("lambada", shared_data / "text" / "lambada_openai.first1000.jsonl")
    assert examples[0].continuations == (" signs",)
    assert examples[426].continuations == (" of\n\nPower",)  # so it stands in the file
    assert Counter(example.n_words for example in examples) == {1: 999, 2: 1}
    assert Counter(example.n_words_whitespace for example in examples) == {1: 999, 2: 1}
    assert all(e.n_chars == len(e.continuations[0]) - 1 for e in examples)


def test_wikitext_loses_no_word(shared_data: Path) -> None:
    file = shared_data / "text" / "wikitext2.valid.raw"
    examples = load("wikitext2", file)
    raw = file.read_text(encoding="utf-8")
    assert "".join(example.text for example in examples) == raw.removeprefix(" \n")
    # the published count of 217646 takes each of the 3760 lines to end in one more word
    assert sum(example.n_words_whitespace for example in examples) == 217646 - 3760


@pytest.mark.parametrize("language", ["zh", "es"])
def test_squad_reads_other_languages(language: str, shared_data: Path) -> None:
    examples = load("squad", shared_data / "squad" / f"xquad.{language}.json", num_fewshot=2)
    assert len(examples) == 1190
    assert all(example.references for example in examples)
    n_passages = len({example.cluster for example in examples})
    assert n_passages == 240


def test_squad_clusters_are_the_passages(shared_data: Path) -> None:
    file = shared_data / "squad" / "dev-v1.1.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    n_passages = sum(len(article["paragraphs"]) for article in content["data"])
    clusters = {example.cluster for example in load("squad", file)}
    assert n_passages - 5 <= len(clusters) <= n_passages  # equal beginnings are put together


@pytest.mark.parametrize(
    ("name", "n_least"), list(zip(DEMO, (24, 24, 24, 20, 12, 10, 10, 6), strict=True))
)
def test_the_demo_ships_whole(name: str, n_least: int) -> None:
    task = tasks.load_task(name)
    examples = tasks.load_examples(task, Options(), seed=0)
    assert len(examples) >= n_least
    if task.protocol == "multiple_choice":
        golds = Counter(example.gold for example in examples)
        assert max(golds.values()) <= len(examples) // 2
        for example in examples:
            assert len(set(example.continuations)) == len(example.continuations)
    if task.protocol == "question_answering":
        for example in examples:
            question = str(example.prompt).lower()
            assert any(reference.lower() in question for reference in example.references)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    ("name", "n_shown"), [("demo_grading", 5), ("demo_ranking", 5), ("demo_pairs", 4)]
)
def test_the_demos_judge_completes_a_text(name: str, n_shown: int, chat: bool) -> None:
    task = tasks.load_task(name)
    examples = tasks.load_examples(task, Options(chat=chat), seed=0)
    for example in examples:
        for prompt in filter(None, (example.prompt, example.second_prompt)):
            assert isinstance(prompt, str)
            assert prompt.startswith(f"{SYSTEM_LINE}\n\n")
            assert prompt.endswith("\nFeedback:")
            assert prompt.count("[RESULT] ") == n_shown  # the worked examples
    assert task.sampling.stop == ("\n",)
    prompts = {p for e in examples for p in (e.prompt, e.second_prompt) if p is not None}
    assert len(prompts) == len(examples) * (1 if name == "demo_grading" else 2)


def test_the_demos_judge_completes_a_text_about_an_answer() -> None:
    task = tasks.load_task("demo_answers")
    examples = tasks.load_examples(task, Options(chat=True), seed=0)
    assert task.grading is not None
    assert task.grading.plain  # as in the other demo tasks that are judged
    assert task.sampling.max_output_tokens <= 48
    assert task.judge_sampling is not None
    assert (task.sampling.stop, task.judge_sampling.stop) == (("\n",), ("\n",))
    for example in examples:
        assert isinstance(example.prompt, tuple)
        judged = grounds_from(example.fields)
        single, pair = judged.absolute("AAA"), judged.relative("AAA", "BBB")
        for prompt, n_shown in ((single, 5), (pair, 4)):
            assert prompt.endswith("\nFeedback:")
            assert prompt.count("[RESULT] ") == n_shown  # the worked examples
            assert example.prompt[0].content in prompt
        assert single.endswith("Response: AAA\nFeedback:")
        assert pair.endswith("Response A: AAA\nResponse B: BBB\nFeedback:")


def test_the_demos_ratings_and_preferences_are_of_all_kinds() -> None:
    grading = tasks.load_examples(tasks.load_task("demo_grading"), Options(), seed=0)
    assert {rating for e in grading for rating in e.reference_ratings} == {1, 2, 3, 4, 5}
    assert {len(e.reference_ratings) for e in grading} == {2}
    assert min(Counter(e.cluster for e in grading).values()) >= 3
    ranking = tasks.load_examples(tasks.load_task("demo_ranking"), Options(), seed=0)
    assert Counter(e.preferred for e in ranking) == {"a": 5, "b": 5, "tie": 2}
    assert {e.group for e in ranking} == {"facts", "advice", "writing"}


def test_demo_choice_has_groups_and_various_numbers_of_choices() -> None:
    examples = tasks.load_examples(tasks.load_task("demo_choice"), Options(), seed=0)
    assert {example.group for example in examples} == {"nature", "geography"}
    assert {len(example.continuations) for example in examples} == {2, 3, 4, 5}


def test_a_folder_of_texts_is_one_document_a_file(shared_data: Path) -> None:
    folder = shared_data / "text" / "udhr"
    examples = load("wikitext2", folder)
    files = sorted(folder.glob("*.txt"))
    assert [e.text for e in examples] == [file.read_bytes().decode("utf-8-sig") for file in files]
    assert [e.n_bytes for e in examples] == [len(e.text.encode()) for e in examples]
    assert all(
        e.n_bytes > e.n_chars for e, f in zip(examples, files, strict=True) if f.stem != "eng"
    )
