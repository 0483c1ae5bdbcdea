"""Task files, and what becomes of rows: examples, shots, chats, and every refusal."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raveval import tasks
from raveval.errors import ConfigError, DataError, Refused
from raveval.tasks import Options
from raveval.tasks.question import Question
from raveval.tasks.sections import Card, Fewshot, GradingSection, SamplingSection, Source
from raveval.tasks.shots import Pool
from raveval.types import Example, Message, Sampling

CHOICE = """
    protocol: multiple_choice
    source: {path: rows.jsonl}
    prompt: "Q: {{ q }}\\nA:"
    choices: options
    gold: right
"""
QA = """
    protocol: question_answering
    source: {path: rows.jsonl}
    prompt: "Q: {{ q }}\\nA:"
    references: answers
"""
TEXT = """
    protocol: language_modelling
    source: {path: rows.jsonl}
    text: "{{ row['text'] }}"
"""


def choice_rows(n: int) -> list[dict[str, Any]]:
    return [{"q": f"q{i}", "options": [f"no{i}", f"yes{i}"], "right": 1} for i in range(n)]


def write_task(folder: Path, body: str, rows: list[Any], name: str = "quiz") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(textwrap.dedent(body), encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    return path


def examples_of(
    folder: Path, body: str, rows: list[Any], *, seed: int = 0, **options: Any
) -> Sequence[Example]:
    task = tasks.load_task(str(write_task(folder, body, rows)))
    return tasks.load_examples(task, Options(**options), seed=seed)


def refusal(folder: Path, body: str, rows: list[Any], **options: Any) -> str:
    with pytest.raises(Refused) as caught:
        examples_of(folder, body, rows, **options)
    return str(caught.value)


# task files


def test_the_documented_example_is_a_whole_task(tmp_path: Path) -> None:
    assert tasks.__doc__ is not None
    shown = tasks.__doc__.split("# capitals.yaml\n")[1].split("\nTemplates (see")[0]
    path = tmp_path / "capitals.yaml"
    path.write_text(textwrap.dedent(shown), encoding="utf-8")
    row = shown[shown.index('{"country"') : shown.index("}", shown.index('{"country"')) + 1]
    (tmp_path / "capitals.jsonl").write_text(row + "\n", encoding="utf-8")
    task = tasks.load_task(str(path))
    assert (task.name, task.card.license) == ("capitals", "CC0-1.0")
    (example,) = tasks.load_examples(task, Options(), seed=0)
    assert example.prompt == "Question: What is the capital of France?\nAnswer:"
    assert example.continuations == (" Lyon", " Paris")
    assert example.gold == 1


def test_every_key_of_a_task_file_is_documented() -> None:
    documented = set((tasks.__doc__ or "").replace(",", " ").replace(":", " ").split())
    documented = {word.strip("`()") for word in documented}
    for model in (tasks.Task, Source, Fewshot, SamplingSection, GradingSection, Card):
        keys = {field.alias or name for name, field in model.model_fields.items()} - {
            "name",
            "file",
        }
        assert keys <= documented, keys - documented


def test_an_unknown_task_gets_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"unknown task 'arc_esay': did you mean 'arc_easy'"):
        tasks.load_task("arc_esay")
    with pytest.raises(ConfigError, match="no such file"):
        tasks.load_task("no/such/task.yaml")


@pytest.mark.parametrize("name", ["x" * 81, ".hidden", "q z", "é" * 40])
def test_a_task_is_named_as_files_can_be(tmp_path: Path, name: str) -> None:
    path = write_task(tmp_path, CHOICE, choice_rows(1), name=name)
    with pytest.raises(ConfigError, match="the file's name is the task's name: at most 80"):
        tasks.load_task(str(path))


def test_a_rubric_that_can_be_no_file_is_refused_by_the_task_files_key(tmp_path: Path) -> None:
    body = 'protocol: absolute_grading\nsource: {path: x}\ngrading: {rubric: "a\\0"}\n'
    path = write_task(tmp_path, body, [])
    with pytest.raises(ConfigError, match=r"quiz\.yaml: grading\.rubric: .*NUL"):
        tasks.load_task(str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("promt: x", ["promt: unknown key", "prompt"]),
        ("doc_to_text: x", ["doc_to_text: unknown key; write `prompt`"]),
        ("name: other", ["the file's name is the task's name"]),
        ("source: {path: a, hub: b}", ["source", "one of `path`, `hub` and `fetch`"]),
        ("source: {fetch: a, split: b}", ["`split` belong to a dataset of the hub"]),
        ("source: {hub: b}", ["source", "needs its `split`"]),
        ("source: {path: a, splt: b}", ["source.splt: unknown key", "split"]),
        ("protocol: multiple_choise", ["multiple_choise", "multiple_choice"]),
        ("scoring: per_word", ["scoring", "per_char"]),
        ("scoring: unconditional", ["needs `unconditional`"]),
        ("references: answers", ["references: protocol multiple_choice has no use for it"]),
        ("sampling: {temperature: 1}", ["sampling: protocol multiple_choice has no use"]),
        ("gold: right right", ["gold", "unexpected 'right' after the expression"]),
        ('prompt: "{{ q"', ["prompt", "unexpected end of template"]),
        ("choices: [no, yes]", ["choices", "string"]),
        ("fewshot: {num: -1}", ["fewshot.num", "greater than or equal to 0"]),
        ("fewshot: {within_group: true}", ["fewshot.within_group needs `group`"]),
    ],
)
def test_a_faulty_task_file_names_the_key(tmp_path: Path, change: str, words: list[str]) -> None:
    body = textwrap.dedent(CHOICE).strip().splitlines()
    key = change.split(":")[0]
    lines = [line for line in body if not line.startswith(f"{key}:")]
    path = write_task(tmp_path, "\n".join([*lines, change]), [])
    with pytest.raises(ConfigError) as caught:
        tasks.load_task(str(path))
    for word in ["quiz.yaml", *words]:
        assert word in str(caught.value)


def test_what_a_protocol_needs_must_be_there(tmp_path: Path) -> None:
    for body, missing in ((CHOICE, "gold"), (QA, "references"), (TEXT, "text")):
        lines = [line for line in body.splitlines() if not line.strip().startswith(f"{missing}:")]
        path = write_task(tmp_path, "\n".join(lines), [])
        with pytest.raises(ConfigError, match="missing"):
            tasks.load_task(str(path))


def test_sampling_has_the_documented_defaults(tmp_path: Path) -> None:
    task = tasks.load_task(str(write_task(tmp_path, QA, [])))
    assert task.sampling == Sampling(max_output_tokens=64, temperature=0.0, stop=("\n",))
    body = QA + "    sampling: {max_output_tokens: 5, stop: [], temperature: 1}\n"
    task = tasks.load_task(str(write_task(tmp_path, body, [])))
    assert task.sampling == Sampling(max_output_tokens=5, temperature=1.0, stop=())


def test_the_identity_of_a_task_leaves_out_what_moves_no_number(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    here = tasks.load_task(str(write_task(tmp_path, CHOICE, [])))
    body = CHOICE + "    card: {description: other}\n"
    there = tasks.load_task(str(write_task(tmp_path / "elsewhere", body, [])))
    assert here.identity() == there.identity()
    assert json.loads(json.dumps(here.identity())) == here.identity()
    changed = tasks.load_task(str(write_task(tmp_path, CHOICE + "    scoring: per_char\n", [])))
    assert changed.identity() != here.identity()


# rows to examples


def test_choices_follow_the_context_after_one_space(tmp_path: Path) -> None:
    body = CHOICE.replace("A:", "A:  ") + '    unconditional: "A: "\n    group: q\n'
    rows = [{"id": 7, "q": "x", "options": [" a", "b "], "right": True}]
    (example,) = examples_of(tmp_path, body, rows)
    assert example == Example(
        id="7",
        prompt="Q: x\nA:",
        unconditional_prompt="A:",
        continuations=(" a", " b "),
        gold=1,
        group="x",
    )


def test_a_boundary_may_be_nothing_and_a_space_moves_to_the_continuation(tmp_path: Path) -> None:
    rows = [{"q": "x", "options": ["是", "否"], "right": 0}]
    body = CHOICE.replace("A:", "答") + '    boundary: ""\n'
    (example,) = examples_of(tmp_path, body, rows)
    assert (example.prompt, example.continuations) == ("Q: x\n答", ("是", "否"))
    body = CHOICE.replace("A:", "A: ") + '    boundary: ""\n'
    (example,) = examples_of(tmp_path, body, rows)
    assert (example.prompt, example.continuations) == ("Q: x\nA:", (" 是", " 否"))


def test_documents_are_counted_as_published(tmp_path: Path) -> None:
    rows = [{"text": " = Ä = \n \n b  c \n"}, {"text": ""}]
    first, second = examples_of(tmp_path, TEXT, rows)
    assert first.text == " = Ä = \n \n b  c \n"
    assert (first.n_words, first.n_words_whitespace) == (7, 5)
    assert (first.n_chars, first.n_bytes) == (17, 18)
    # an empty document is asked all the same; it becomes a counted INVALID example
    assert (second.text, second.n_words, second.n_bytes) == ("", 1, 0)


def test_a_changed_text_is_counted_on_the_original(tmp_path: Path) -> None:
    body = TEXT.replace("row['text']", "row['text'] | replace(' @-@ ', '-')")
    body += "    counted_text: \"{{ row['text'] }}\"\n"
    (example,) = examples_of(tmp_path, body, [{"text": "a @-@ b"}])
    assert (example.text, example.n_words, example.n_chars) == ("a-b", 3, 7)


def test_a_continuation_is_scored_and_counted_alone(tmp_path: Path) -> None:
    body = """
        protocol: language_modelling
        source: {path: rows.jsonl}
        prompt: "{{ before }}"
        continuation: "{{ word }}"
    """
    (example,) = examples_of(tmp_path, body, [{"before": "He said ", "word": "né"}])
    assert (example.prompt, example.continuations) == ("He said", (" né",))
    assert (example.n_words, example.n_chars, example.n_bytes) == (1, 2, 3)


def test_ids_come_from_the_column_or_the_row_number(tmp_path: Path) -> None:
    rows = choice_rows(3)
    assert [e.id for e in examples_of(tmp_path, CHOICE, rows)] == ["0", "1", "2"]
    assert [e.id for e in examples_of(tmp_path, CHOICE + "    id: q\n", rows, limit=2)] == [
        "q0",
        "q1",
    ]
    for row in rows:
        row["id"] = "same"
    message = refusal(tmp_path, CHOICE, rows)
    assert "rows.jsonl:2: id 'same' is already that of" in message
    assert "rows.jsonl:1; ids must be unique" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"right": None}, ["gold: expected the index of a choice, found NoneType"]),
        ({"right": "1"}, ["gold: expected the index of a choice, found str '1'"]),
        ({"right": 2}, ["gold: index 2, but the choices are 0 to 1"]),
        ({"right": -1}, ["gold: index -1 (a split whose labels are hidden?)"]),
        ({"options": ["only"]}, ["choices: 1 given, at least 2 are needed"]),
        ({"options": []}, ["choices: 0 given"]),
        ({"options": "ab"}, ["choices: expected a list of texts, found str 'ab'"]),
        ({"options": ["a", 3]}, ["choices[1]: expected a text, found int 3"]),
        ({"options": ["a", " "]}, ["choices[1]: empty"]),
        ({"q": None}, ["prompt:", "null where text is needed", "(null: q)"]),
        ({"q": ["x"]}, ["prompt:", "a list where text is needed"]),
        ({"q": "\ud800"}, ["half of a surrogate pair"]),
    ],
)
def test_a_row_that_cannot_be_read_names_line_and_field(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    rows = choice_rows(3)
    rows[1].update(change)
    message = refusal(tmp_path, CHOICE, rows)
    for word in ["rows.jsonl:2: ", *words, "cannot read 1 of 3 rows"]:
        assert word in message


def test_a_missing_column_is_named_beside_those_there_are(tmp_path: Path) -> None:
    rows = choice_rows(2)
    del rows[0]["right"]
    message = refusal(tmp_path, CHOICE, rows)
    assert "rows.jsonl:1: gold: 'right': no column 'right'; the row's columns: q, opt" in message


def test_many_bad_rows_are_one_error(tmp_path: Path) -> None:
    rows = [{**row, "right": 9} for row in choice_rows(40)]
    lines = refusal(tmp_path, CHOICE, [*rows, *choice_rows(2)]).splitlines()
    assert len(lines) == 6
    assert lines[4].startswith(f"{tmp_path}/rows.jsonl:5: ")
    assert "cannot read 40 of 42 rows" in lines[5]


def test_a_template_that_breaks_alike_in_every_row_is_told_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, CHOICE.replace("gold: right", "gold: 1 // 0"), choice_rows(3))
    first, second = said.splitlines()
    assert first.startswith(f"{tmp_path}/quiz.yaml: gold: ")
    assert "zero" in first
    assert second.startswith(f"So it is with all 3 rows read, {tmp_path}/rows.jsonl:1 first. Mend")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gold: right", "gold: rigth", "gold: 'rigth': no column 'rigth' (did you mean 'right'?)"),
        ("choices: options", "choices: option", "no column 'option' (did you mean 'options'?)"),
        ("{{ q }}", "{{ Q.text }}", "prompt: 'Q: {{ Q.text }}\\nA:': no column 'Q'; the row's"),
    ],
)
def test_a_fault_of_the_task_file_is_told_once_and_as_one(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    rows = [*choice_rows(2), {**choice_rows(1)[0], "also": 1}]
    lines = refusal(tmp_path, CHOICE.replace(old, new), rows).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{tmp_path}/quiz.yaml: ")
    assert said in lines[0]
    assert lines[0].endswith("the row's columns: q, options, right")
    assert lines[1] == (
        f"So it is with all 3 rows read, {tmp_path}/rows.jsonl:1 first. Mend this key of the task "
        "file, or the data"
    )


def test_a_file_of_another_layout_than_the_catalogues_is_told_once(tmp_path: Path) -> None:
    write_task(tmp_path, CHOICE, choice_rows(5))
    given = Options(path=str(tmp_path / "rows.jsonl"))
    with pytest.raises(DataError) as refused:
        tasks.load_examples(tasks.load_task("arc_easy"), given, seed=0)
    first, second = str(refused.value).splitlines()
    assert first.startswith("task 'arc_easy' of the catalogue: ")
    assert first.endswith("no column 'question'; the row's columns: q, options, right")
    assert "all 5 rows read" in second
    assert "--path" in second
    assert "the task's own data (allenai/ai2_arc ARC-Easy test)" in second


@pytest.mark.parametrize(
    ("key", "expression", "advised"),
    [
        ("choices", "a", '"[a, b, c]"'),
        ("choices", "all", "\"all.split('|')\""),
        ("gold", "number", "number | int"),
        ("gold", "text", '"[a, b].index(text)"'),
        ("gold", "letter", "\"'AB'.index(letter)\""),
        ("gold", "small", "\"'ab'.index(small)\""),
    ],
)
def test_what_cells_of_text_need_is_advised_once(
    tmp_path: Path, key: str, expression: str, advised: str
) -> None:
    (tmp_path / "t.csv").write_text(
        "q,a,b,c,all,number,text,letter,small\nx,1st,2nd,3rd,1st|2nd|3rd,0,1st,A,a\n"
        "y,one,two,three,one|two|three,1,two,B,b\n"
    )
    keys = {"choices": "'[a, b]'", "gold": "number | int"} | {key: expression}
    body = "protocol: multiple_choice\nsource: {path: t.csv}\nprompt: '{{ q }}'\n"
    message = refusal(tmp_path, body + "".join(f"{k}: {v}\n" for k, v in keys.items()), [])
    assert len(message.splitlines()) == 2
    assert f"`{key}: {advised}`" in message
    keys[key] = advised
    written = body + "".join(f"{k}: {v}\n" for k, v in keys.items())
    first, second = examples_of(tmp_path, written, [])
    assert (first.gold, second.gold) == (0, 1)


def test_a_text_as_gold_beside_a_list_of_templates_is_told_once(tmp_path: Path) -> None:
    body = CHOICE.replace("choices: options", "choices: ['{{ options[0] }}', '{{ options[1] }}']")
    rows = [{**row, "right": row["options"][1]} for row in choice_rows(3)]
    message = refusal(tmp_path, body, rows)
    assert len(message.splitlines()) == 2
    assert '`choices: "[a, b]"` with `gold: "[a, b].index(right)"`' in message


def test_where_a_task_file_lies_is_no_part_of_what_the_task_is(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    found = [
        tasks.load_task(str(write_task(folder, CHOICE, [])))
        for folder in (tmp_path, tmp_path / "elsewhere")
    ]
    assert found[0].file != found[1].file
    assert found[0].identity() == found[1].identity()


def test_one_answer_and_several_in_a_cell_are_advised(tmp_path: Path) -> None:
    rows = [{"q": "x", "answers": "Paris|Lutetia"}, {"q": "y", "answers": "Rome"}]
    message = refusal(tmp_path, QA, rows)
    assert len(message.splitlines()) == 2
    for advised, references in (
        ("\"answers.split('|')\"", ("Paris", "Lutetia")),
        ('"[answers]"', ("Paris|Lutetia",)),
    ):
        assert f"`references: {advised}`" in message
        (first, _) = examples_of(
            tmp_path, QA.replace("references: answers", f"references: {advised}"), rows
        )
        assert first.references == references


def test_a_list_without_brackets_is_told_to_have_them(tmp_path: Path) -> None:
    body = CHOICE.replace("choices: options", 'choices: "a, b, c"')
    (line,) = refusal(tmp_path, body, []).splitlines()
    assert "choices: template 'a, b, c', line 1: unexpected ',' after the expression" in line
    assert "a list stands in brackets: [a, b, c]" in line
    (line,) = refusal(tmp_path, CHOICE.replace("choices: options", "choices: 3"), []).splitlines()
    assert "choices: expected a list (given 3)" in line


def test_references_are_needed_unless_the_task_knows_no_answer(tmp_path: Path) -> None:
    rows = [{"q": "a", "answers": ["x", "y"]}, {"q": "b", "answers": []}]
    assert "references: none" in refusal(tmp_path, QA, rows)
    body = QA + "    no_answer: nothing\n"
    first, second = examples_of(tmp_path, body, rows, num_fewshot=1)
    assert (first.references, second.references) == (("x", "y"), ())
    assert first.prompt == "Q: b\nA: nothing\n\nQ: a\nA:"
    assert second.prompt == "Q: a\nA: x\n\nQ: b\nA:"
    assert "references[0]: expected a text" in refusal(tmp_path, QA, [{"q": "a", "answers": [1]}])


def test_no_rows_are_refused(tmp_path: Path) -> None:
    assert "no rows" in refusal(tmp_path, CHOICE, [])


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        (TEXT, {"num_fewshot": 1}, "num_fewshot is 1, but documents are scored as they stand"),
        (CHOICE, {"split": "test"}, "split belongs to the hub's dataset"),
        (CHOICE, {"system_prompt": "x"}, "system_prompt needs chat"),
        (CHOICE, {"limit": 0}, "limit >= 1"),
        (CHOICE, {"num_fewshot": -1}, "num_fewshot must be >= 0"),
        (CHOICE, {"path": "no/such.jsonl"}, "no/such.jsonl: no such file"),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, body: str, options: dict[str, Any], words: str
) -> None:
    assert words in refusal(tmp_path, body, [*choice_rows(3)], **options)


def test_the_limit_takes_the_first_rows_and_reads_no_further(tmp_path: Path) -> None:
    rows = [*choice_rows(3), "not an object"]
    assert [e.prompt for e in examples_of(tmp_path, CHOICE, rows, limit=2)] == [
        "Q: q0\nA:",
        "Q: q1\nA:",
    ]
    assert "rows.jsonl:4: expected an object" in refusal(tmp_path, CHOICE, rows)


# shots


def test_shots_stand_before_the_question(tmp_path: Path) -> None:
    body = CHOICE + "    instruction: Answer.\n    fewshot: {num: 2, order: first}\n"
    first, second, _ = examples_of(tmp_path, body, choice_rows(3))
    assert first.prompt == "Answer.\n\nQ: q1\nA: yes1\n\nQ: q2\nA: yes2\n\nQ: q0\nA:"
    assert second.prompt == "Answer.\n\nQ: q0\nA: yes0\n\nQ: q2\nA: yes2\n\nQ: q1\nA:"
    alone, *_ = examples_of(tmp_path, body, choice_rows(3), num_fewshot=0)
    assert alone.prompt == "Answer.\n\nQ: q0\nA:"


def test_shots_depend_on_seed_and_id_alone(tmp_path: Path) -> None:
    rows = [{**row, "id": f"id{i}"} for i, row in enumerate(choice_rows(40))]
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = CHOICE + "    fewshot: {path: pool.jsonl}\n"

    def prompts(given: list[Any], **options: Any) -> dict[str, Any]:
        loaded = examples_of(tmp_path, body, given, num_fewshot=5, **options)
        return {example.id: example.prompt for example in loaded}

    everything = prompts(rows)
    assert prompts(list(reversed(rows))) == everything
    assert prompts(rows, limit=3) == {f"id{i}": everything[f"id{i}"] for i in range(3)}
    assert prompts(rows) == everything
    assert prompts(rows, seed=1) != everything
    assert len(set(everything.values())) == 40
    for example_id, prompt in everything.items():
        assert prompt.count("Q: ") == 6
        own = f"Q: q{example_id.removeprefix('id')}\n"
        assert prompt.count(own) == 1
        shown = prompt.split("\n\n")[:-1]
        assert len(set(shown)) == 5


def test_a_duplicate_of_the_example_is_never_shown(tmp_path: Path) -> None:
    rows = choice_rows(4)
    rows += [{**row, "options": ["other", "label"]} for row in rows]
    for example in examples_of(tmp_path, CHOICE, rows, num_fewshot=3):
        assert isinstance(example.prompt, str)
        questions = [part.split("\n")[0] for part in example.prompt.split("\n\n")]
        assert sorted(questions) == ["Q: q0", "Q: q1", "Q: q2", "Q: q3"]


def test_too_few_for_the_shots_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, CHOICE, choice_rows(3), num_fewshot=3)
    assert "rows.jsonl has 2 different questions beside example '0', but 3 shots" in message


def test_a_pool_of_its_own_may_hold_exactly_the_shots(tmp_path: Path) -> None:
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps(row) + "\n" for row in choice_rows(2)))
    rows = choice_rows(3)[1:]
    found, other = examples_of(tmp_path, CHOICE, rows, num_fewshot=2, fewshot_path=str(pool))
    assert found.prompt == "Q: q0\nA: yes0\n\nQ: q1\nA:"
    assert isinstance(other.prompt, str)
    assert other.prompt.count("Q: ") == 3
    message = refusal(tmp_path, CHOICE, rows, num_fewshot=3, fewshot_path=str(pool))
    assert "but 3 shots are asked for" in message


def test_shots_come_from_the_examples_own_group(tmp_path: Path) -> None:
    rows = [{**row, "subject": "ab"[i % 2]} for i, row in enumerate(choice_rows(12))]
    body = CHOICE + "    group: subject\n    fewshot: {within_group: true, num: 3}\n"
    for i, example in enumerate(examples_of(tmp_path, body, rows)):
        assert isinstance(example.prompt, str)
        shown = [int(part[4:].split("\n")[0]) for part in example.prompt.split("\n\n")]
        assert {number % 2 for number in shown} == {i % 2}


@given(st.integers(2, 30), st.data())
def test_drawing_is_without_replacement_and_uses_the_whole_pool(n: int, data: Any) -> None:
    k = data.draw(st.integers(1, n - 1))
    candidates = [Question(where="", id=str(i), context=f"q{i}") for i in range(n)]
    pool = Pool(candidates, within_group=False, order="random", name="pool")
    drawn = pool.draw(candidates[0], k, seed=data.draw(st.integers(0, 2**63)))
    assert len({shot.id for shot in drawn}) == k
    assert "0" not in {shot.id for shot in drawn}


def test_every_question_is_drawn_about_equally_often(tmp_path: Path) -> None:
    loaded = examples_of(tmp_path, CHOICE, choice_rows(200), num_fewshot=10)
    counts = [
        sum(f"Q: q{i}\n" in str(example.prompt) for example in loaded) - 1 for i in range(200)
    ]
    # each of the 199 others shows a question with probability 10/199: binomial, mean 10, sd 3.1
    assert sum(counts) == 2000
    assert min(counts) > 0
    assert max(counts) < 26


# chats


def test_a_chat_shows_shots_as_turns(tmp_path: Path) -> None:
    body = CHOICE + '    unconditional: "A:"\n    instruction: Answer.\n'
    body += "    fewshot: {num: 1, order: first}\n"
    options: dict[str, Any] = {"chat": True, "system_prompt": "Be brief."}
    _, second, _ = examples_of(tmp_path, body, choice_rows(3), **options)
    assert second.prompt == (
        Message("system", "Be brief."),
        Message("user", "Answer.\n\nQ: q0\nA:"),
        Message("assistant", "yes0"),
        Message("user", "Q: q1\nA:"),
    )
    assert second.continuations == ("no1", "yes1")
    assert second.unconditional_prompt == (Message("system", "Be brief."), Message("user", "A:"))
    options = {"chat": True, "fewshot_as_multiturn": False}
    _, second, _ = examples_of(tmp_path, body, choice_rows(3), **options)
    assert second.prompt == (Message("user", "Answer.\n\nQ: q0\nA: yes0\n\nQ: q1\nA:"),)


def test_documents_stay_as_they_are_in_a_chat(tmp_path: Path) -> None:
    rows = [{"text": "a b"}]
    (plain,) = examples_of(tmp_path, TEXT, rows)
    (chat,) = examples_of(tmp_path, TEXT, rows, chat=True, system_prompt="x")
    assert chat == plain


def test_provenance_of_a_file_is_its_path(tmp_path: Path) -> None:
    task = tasks.load_task(str(write_task(tmp_path, CHOICE, [])))
    assert tasks.provenance(task, Options()) == {"examples": str(tmp_path / "rows.jsonl")}
    from_file = {"examples": "x.jsonl", "shots": "x.jsonl"}
    assert tasks.provenance(task, Options(path="x.jsonl", num_fewshot=2)) == from_file
    assert tasks.source_remarks({**from_file, "limit": "5"}) == [
        "only the first 5 rows of x.jsonl",
        "shots are other examples of the same data: fewshot_path names another pool",
    ]
    assert tasks.source_remarks({**from_file, "shots": "train.jsonl"}) == []


def test_bad_rows_of_the_pool_are_told_as_well(tmp_path: Path) -> None:
    pool = tmp_path / "pool.jsonl"
    pool.write_text('{"q": "x"}\n')
    with pytest.raises(DataError, match=r"quiz.yaml: choices: .*no column 'options'") as refused:
        examples_of(tmp_path, CHOICE, choice_rows(2), num_fewshot=1, fewshot_path=str(pool))
    assert f"the one row read, {pool}:1 (the file that --path or" in str(refused.value)
