r"""What a task is: a benchmark as data, one YAML file with its card.

The catalogue's tasks have names (`raveval tasks` lists them); your own is a file ending in .yaml,
and its name is the file's. A whole one:

    # capitals.yaml
    protocol: multiple_choice
    card:
      description: Capitals of Europe, four choices.
      license: CC0-1.0
    source:
      path: capitals.jsonl         # {"country": "France", "options": ["Lyon", "Paris"], "right": 1}
    prompt: "Question: What is the capital of {{ country }}?\nAnswer:"
    choices: options
    gold: right

Templates (see `raveval.templates`) come in two kinds: a *text* is Jinja, an *expression* is what
would stand between the braces. The row's columns are their variables.

General keys:

    protocol        multiple_choice (also classification and entailment), question_answering,
                    language_modelling, open_generation, an evaluator's (absolute_grading, ranking,
                    relative_grading), or the dotted name of your own module
    version         raise it when the task's numbers can change (default 1)
    card            description, homepage, license, paper, language, kind, notes: for readers
    source          where the rows are, below
    id              expression; default: the column `id`, else the row's number from 0
    group           expression: the subject, for numbers by group
    cluster         expression: what examples have in common that are not independent (a passage)
    metrics         list of metric families; default: the protocol's own
    distinct        true: a row that gives the same example as an earlier one, but for its id, is
                    left out and counted; `limit` then counts those that stay (default false)
    may_truncate    true: a prompt that is too long loses its beginning, and is counted as
                    truncated; false (default): it is counted as overlong, and is missing

source, one of three, and how to read it:

    path            file or folder, relative to the task file: .jsonl .json .csv .tsv .parquet .txt
                    .raw .md, each also with .gz; SQuAD's JSON becomes rows of id, title, context,
                    question, answers.text, is_impossible; cells of CSV are text
    fetch           words that say which file a person fetches, and from where; each run then names
                    it by its own `path`
    hub             dataset on the hub; with `config`, `revision` (default main) and `split`
    format          jsonl json squad csv tsv parquet text, where the file's ending does not tell
    documents       plain text: one document per `file` (default), `line`, or WikiText `article`
    split_on        plain text: the string between two documents

multiple_choice:

    prompt          text: the context that all choices follow
    choices         expression that gives a list of texts, or a list of text templates
    gold            expression: index of the right choice, from 0
    unconditional   text: the context of `accuracy_unconditional`, say "Answer:"; without it, that
                    scoring is not measured
    scoring         which scoring `accuracy` is: raw (default), per_token, per_char, per_byte,
                    unconditional

question_answering:

    prompt          text: what the model completes
    references      expression: list of the answers that count as right
    answer          text: what a shot shows as its answer; default: the first reference
    no_answer       what the model has to say where there is no answer; without it, a row without
                    references is an error
    sampling        max_output_tokens (default 64), stop (default ["\n"]), temperature (0.0),
                    top_p (1.0), repetition_penalty (1.0)

absolute_grading, ranking, relative_grading: the model is an evaluator (see `raveval.judging`):

    grading         what it is shown: `instruction`, `response` (ranking and relative_grading: a
                    list `responses` of two), `rubric`, and if there are any `reference` and
                    `context`, all of them texts; or `prompt` (a list `prompts` of two) where the
                    row holds the whole prompt. `rubric` is a rubric file, or its six keys as texts.
                    `samples` (default 3, of absolute_grading), `max_attempts` (5), `max_tie_rounds`
                    (10, of ranking). `plain: true`: the prompt is a text to complete, and is sent
                    as one also where the judge has a chat template
    reference_ratings   expression: a trusted rater's score, or a list of them
    preferred       expression: the response that a person preferred, "a", "b" or "tie"
    sampling        as above, by default max_output_tokens 1024, temperature 1.0, top_p 0.9,
                    repetition_penalty 1.03; or a preset: prometheus_v1, prometheus_v2

open_generation: the model answers, and a judge, another model, grades the answer:

    grading         what the judge goes by: `instruction`, `rubric`, `reference` and `context` as
                    above, `samples`, `max_attempts` and `plain` too, but no response: that is the
                    model's own. Or `prompt`, where the row holds a whole prompt for a judge:
                    its instruction, rubric, reference and context are taken out of it and laid out
                    anew, and the response in it is not used. Or `template`, a text in a layout of
                    your own that shows `{{ response }}` once (and no column of that name), with
                    `pair_template`, which shows `{{ response_a }}`, then `{{ response_b }}`, where
                    a run names a baseline
    prompt          text: what the model is asked; default: the context and the instruction
    answer          text: what a shot shows as its answer; default: the reference
    sampling        of the answer: as above, by default max_output_tokens 1024, no stop,
                    temperature 0.0
    judge_sampling  of the verdicts: as `sampling` of an evaluator, presets included

language_modelling, whole documents or the end of a context:

    text            text: the document, scored whole
    counted_text    text: what words, bytes and characters are counted on, where `text` was changed
                    from the original; default: `text`
    prompt, continuation    texts: instead of `text`; the continuation alone is scored

Shots and layout:

    instruction     text that stands once before shots and question (chat: in the first user turn)
    boundary        what stands between a prompt and its continuation (default one space). Trailing
                    spaces of a prompt go with it to the continuation: a context never ends in one
    fewshot         num (default 0), split (hub) or path (local) of the pool, order: random
                    (default) or first, within_group: true draws from the example's own group,
                    separator (default a blank line)

Shots are a function of the run's seed and the example's id alone, and never hold the example itself
nor another with the same prompt. With the file that a user gives (`path:` of a run), they come from
`fewshot_path` or from the same file. In a chat each shot is a user turn and an assistant turn, and
continuations lose the boundary, since the chat template's own text ends the context. Documents are
scored as they stand, also in a run that is a chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raveval import judging
from raveval.errors import ConfigError, nearest
from raveval.paths import is_name
from raveval.spool import Spool
from raveval.strict_yaml import read_yaml, validate
from raveval.tasks.sections import SamplingSection
from raveval.tasks.task import GRADED, JUDGED, Task
from raveval.types import Example

__all__ = [
    "CATALOG",
    "GRADED",
    "JUDGED",
    "Options",
    "Task",
    "check_baseline",
    "load_examples",
    "load_task",
    "names",
    "provenance",
    "source_digests",
    "source_remarks",
    "with_judge_sampling",
    "with_sampling",
]

CATALOG = Path(__file__).parent / "catalog"

_OTHER_NAMES = {
    "task": "the file's name is the task's name",
    "name": "the file's name is the task's name",
    "file": "write `source: {path: …}`",
    "output_type": "write `protocol`",
    "dataset_path": "write `source: {hub: …}` or `source: {path: …}`",
    "dataset_name": "write `source: {config: …}`",
    "test_split": "write `source: {split: …}`",
    "validation_split": "write `source: {split: …}`",
    "fewshot_split": "write `fewshot: {split: …}`",
    "num_fewshot": "write `fewshot: {num: …}`",
    "doc_to_text": "write `prompt`",
    "doc_to_target": "write `gold` (multiple_choice), `references` or `text`",
    "doc_to_choice": "write `choices`",
    "description": "write `card: {description: …}`, or `instruction` for text before the shots",
    "generation_kwargs": "write `sampling`",
    "metric_list": "write `metrics`, a list of names",
    "target_delimiter": "write `boundary`",
    "fewshot_delimiter": "write `fewshot: {separator: …}`",
}
"""Keys that users know from the LM Evaluation Harness."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run may change about a task.

    Attributes:
        path: a local file or folder instead of the task's own source.
        limit: only the first so many rows of the source.
        num_fewshot: how many shots; None means the task's own number.
        fewshot_path: a local file of shots instead of the task's own pool.
        split: another split of the hub's dataset.
        chat: render chat turns for the model's own chat template.
        system_prompt: the system turn of a chat.
        fewshot_as_multiturn: in a chat, show each shot as two turns; False puts all in one.
    """

    path: str | None = None
    limit: int | None = None
    num_fewshot: int | None = None
    fewshot_path: str | None = None
    split: str | None = None
    chat: bool = False
    system_prompt: str | None = None
    fewshot_as_multiturn: bool = True


def names() -> tuple[str, ...]:
    """Return the names of the catalogue's tasks, sorted."""
    return tuple(sorted(file.stem for file in CATALOG.glob("*.yaml")))


def load_task(name: str) -> Task:
    """Read a task of the catalogue by its name, or a task file by its path (.yaml or .yml).

    Raises:
        ConfigError: no such task (with the nearest names), or a file that says what is not allowed.
    """
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    if name not in names():
        hint = nearest(name, names())
        raise ConfigError(f"unknown task {name!r}: {hint} A task of your own is a path to a .yaml")
    return _read(CATALOG / f"{name}.yaml")


def _read(path: Path) -> Task:
    content = read_yaml(path)
    for key in content:
        if key in _OTHER_NAMES:
            raise ConfigError(f"{path}: {key}: unknown key; {_OTHER_NAMES[key]}")
    if not is_name(path.stem):
        raise ConfigError(
            f"{path}: the file's name is the task's name: at most 80 letters, digits, '_', '-', '.'"
        )
    _read_rubric_file(content, path)
    for section in ("source", "fewshot"):
        values = content.get(section)
        if isinstance(values, dict) and isinstance(values.get("path"), str):
            content[section] = {**values, "path": str(path.parent / values["path"])}
    return validate(Task, {**content, "name": path.stem, "file": path}, where=str(path))


def _read_rubric_file(content: dict[str, Any], path: Path) -> None:
    """Put the texts of a rubric file where the task names one; braces in them mean themselves."""
    grading = content.get("grading")
    if isinstance(grading, dict) and isinstance(grading.get("rubric"), str):
        try:
            texts = judging.read_rubric(path.parent / grading["rubric"]).content()
        except ConfigError as exc:
            raise ConfigError(f"{path}: grading.rubric: {exc}") from exc
        literal = {key: f"{{% raw %}}{text}{{% endraw %}}" for key, text in texts.items()}
        content["grading"] = {**grading, "rubric": literal}


def load_examples(task: Task, options: Options, *, seed: int) -> Spool[Example]:
    """Read a task's rows and render what is asked, in the order of the source.

    A row is held at a time: examples go to a temporary file, and `Spool.sort` puts them into their
    fixed pseudo-random order, by the hash of their id.

    Raises:
        ConfigError: options that contradict each other or the task.
        DataError: no rows, rows that the task's templates cannot read (the first are listed), ids
            that are not unique, too few rows for the shots.
        ResourceError: the temporary folder does not hold them.
    """
    from raveval.tasks import loading

    return loading.examples(task, options, seed=seed)


def with_sampling(task: Task, section: SamplingSection) -> Task:
    """Return a task whose answers are generated as `section` says, and else as its own."""
    return task.model_copy(update={"sampling_section": _over(task.sampling_section, section)})


def with_judge_sampling(task: Task, section: SamplingSection) -> Task:
    """Return a task whose judge is sampled as `section` says, and else as its own.

    Raises:
        ConfigError: no other model is the judge of this task.
    """
    if task.protocol not in GRADED:
        hint = (
            "; the model is the judge itself: write `sampling`" if task.protocol in JUDGED else ""
        )
        raise ConfigError(
            f"task {task.name!r}: judge_sampling: no judge grades the answers of protocol "
            f"{task.protocol}{hint}"
        )
    sampling = _over(task.judge_sampling_section, section)
    return task.model_copy(update={"judge_sampling_section": sampling})


def check_baseline(task: Task) -> None:
    """Refuse a task whose answers cannot be held against those of another run.

    Raises:
        ConfigError: no judge compares its answers, or the task does not say how to show two.
    """
    if task.protocol not in GRADED:
        raise ConfigError(
            f"task {task.name!r}: baseline: no judge grades the answers of protocol {task.protocol}"
        )
    grading = task.grading
    if grading is not None and grading.template is not None and grading.pair_template is None:
        raise ConfigError(
            f"task {task.name!r}: baseline: its judge is asked by a `template` of its own; write "
            "`grading.pair_template`, which shows two responses, or leave the baseline out"
        )


def _over(own: SamplingSection, given: SamplingSection) -> SamplingSection:
    return own.model_copy(update=given.model_dump(exclude_none=True))


def provenance(task: Task, options: Options) -> dict[str, str]:
    """Return where a task's examples and shots come from; asks the hub for its commit.

    Raises:
        DataError: the hub does not know the dataset or cannot be reached.
    """
    from raveval.tasks import loading

    return loading.provenance(task, options)


def source_digests(task: Task, options: Options) -> list[list[str]]:
    """Return the names and hashes of the files of a task's examples and shots.

    Of a dataset of the hub it is the commit and the files' names.

    Raises:
        DataError: there is no such file, or the hub does not know the dataset.
    """
    from raveval.tasks import loading

    return loading.source_digests(task, options)


def source_remarks(source: Mapping[str, str]) -> list[str]:
    """Say what a reader of a task's numbers must know of where its examples come from."""
    remarks = []
    if "limit" in source:
        kept = "different rows" if "repeated_rows" in source else "rows"
        remarks.append(f"only the first {source['limit']} {kept} of {source.get('examples')}")
    if "repeated_rows" in source:
        remarks.append(f"{source['repeated_rows']} rows repeat an earlier one, and are left out")
    if source.get("shots") is not None and source["shots"] == source.get("examples"):
        remarks.append("shots are other examples of the same data: fewshot_path names another pool")
    if "baseline" in source:
        lacking = source.get("baseline_missing", "0")
        without = f"; it has none to {lacking} of them" if lacking != "0" else ""
        model, directory = source["baseline_model"], source["baseline"]
        remarks.append(f"compared with the answers of {model} ({directory}){without}")
    return remarks
