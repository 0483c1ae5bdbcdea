"""Everything that the README tells a newcomer to type works as it stands.

Two tables say what becomes of each command line and of each block of a file or of Python. A line or
a block without an entry fails, and so does an entry that the README no longer has. What runs, runs
with the files that the page itself shows, in their places.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
import yaml

from raveval import registry, templates
from raveval.cli import app
from raveval.config import EngineConfig, engine_options, load_config
from raveval.evaluate import load_protocol
from raveval.submission.bundle import make_bundle
from raveval.tasks import load_task
from tests import lm_eval_files

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROCESS = Path(__file__).with_name("readme_process.py")
FIRST_SCREEN = "raveval"


@dataclass(frozen=True)
class Run:
    """A command or a Python block that runs.

    Attributes:
        edits: what takes the place of weights, of a GPU or of a server.
        before: commands whose runs it needs, from another page.
        says: text in its output.
        leaves: a file that is there afterwards.
        on_ray: whether its replicas are actors of Ray, or work in the process of the commands.
    """

    says: str = ""
    edits: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    leaves: str = ""
    on_ray: bool = False


@dataclass(frozen=True)
class Checked:
    """A command that cannot run here, or a block that is no whole file: why, and what holds."""

    because: str
    check: Callable[[str, Path], object]


@dataclass(frozen=True)
class File:
    """A block that the reader saves under this name; `edits` as in Run."""

    name: str
    edits: Mapping[str, str] = field(default_factory=dict)


SCRIPTED = {"raveval run": "raveval run --engine scripted"}
JUDGED = {
    "raveval run": "raveval run --engine scripted --judge-engine scripted "
    "--judge-args script=tests.judges:decides"
}
NO_DEMO = {"--model demo": "--model ./my-checkpoint", "--judge demo": "--judge org/judge"}
EXPORTED = {"runs/first": "runs/exported"}  # the run of another page is another model's
PLANNED = {"raveval plan": "raveval plan --engine scripted"}


def run_of(model: str, output: str) -> str:
    return (
        f"raveval run --engine scripted --model-args by_model=true --model {model} "
        f"--tasks demo_choice --output-path {output}"
    )


def parses(command: str, world: Path) -> None:
    """The command line is one: its flags exist, and their values are of their types."""
    name, *arguments = words_of(command)
    commands: Any = typer.main.get_command(app)
    commands.commands[name].make_context(name, arguments)


def words_of(command: str) -> list[str]:
    program, *words = command.removeprefix("RAY_AUTH_MODE=token ").split()
    assert program == "raveval", command
    return words


def submits(command: str, world: Path) -> None:
    parses(command, world)
    packed = make_bundle(load_config(world / "run.yaml"))
    assert packed.output == "/mnt/raveval/runs/first"


def names_a_file(command: str, world: Path) -> None:
    """What it names under cluster/ is there, and its tests read it by this name."""
    (path,) = re.findall(r"cluster/\S+", command)
    assert (ROOT / path).is_file()
    checks = (ROOT / "tests" / "unit" / "test_cluster_files.py").read_text()
    assert f'"{Path(path).name}"' in checks


def is_a_target(command: str, world: Path) -> None:
    made = subprocess.run(
        ["make", "--dry-run", *command.split()[1:]],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    expected = {
        "demo": "raveval run configs/demo.yaml",
        "test": "pytest",
        "chaos": "tests.chaos --rounds 200",
        "check": "mypy",
    }
    assert expected[command.split()[1]] in made.stdout


def names_the_service(command: str, world: Path) -> None:
    """The port is the job server's, and KubeRay calls a cluster's service so."""
    cluster = yaml.safe_load((ROOT / "cluster/kuberay/raycluster.yaml").read_text())
    assert f"service/{cluster['metadata']['name']}-head-svc 8265" in command


def is_a_command_of_ray(command: str, world: Path) -> None:
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    subprocess.run([*ray, *command.split()[1:], "--help"], check=True, capture_output=True)


def names_the_secret(command: str, world: Path) -> None:
    """KubeRay keeps a cluster's token in a secret of the cluster's name."""
    cluster = yaml.safe_load((ROOT / "cluster/kuberay/raycluster.yaml").read_text())
    assert f"get secret {cluster['metadata']['name']} " in command


NO_CLUSTER = "needs Kubernetes, Slurm or AWS; tests/unit/test_cluster_files.py checks the file"
NO_SERVER = "needs a job server; tests/end_to_end/test_cluster.py submits to one"
ITSELF = "installs, or runs this very test; what make would do is looked at"

COMMANDS: Mapping[tuple[str, str], Run | Checked] = {
    (FIRST_SCREEN, "make demo"): Checked(ITSELF, is_a_target),
    (FIRST_SCREEN, "make test"): Checked(ITSELF, is_a_target),
    (
        "On one machine",
        "raveval run --model demo --tasks demo_choice --output-path runs/small",
    ): Run("demo_choice", {**SCRIPTED, **NO_DEMO}, leaves="runs/small/report.html", on_ray=True),
    ("On one machine", "raveval tasks --search science"): Run("arc_easy"),
    (
        "On one machine",
        "raveval plan --model ./my-checkpoint --tasks arc_easy,squad --limit 100 --num-fewshot 5 "
        "--output-path runs/first",
    ): Run("squad: 6 examples, question_answering, 5-shot", PLANNED),
    (
        "On one machine",
        "raveval run --model ./my-checkpoint --tasks arc_easy,squad --limit 100 --num-fewshot 5 "
        "--output-path runs/first",
    ): Run("| squad", SCRIPTED, leaves="runs/first/report.html"),
    ("On one machine", "raveval report runs/first --format markdown"): Run("| arc_easy"),
    ("On one machine", "raveval run run.yaml"): Run("arc_easy_5shot"),
    (
        "On a cluster",
        "raveval submit run.yaml --address http://127.0.0.1:8265",
    ): Checked(NO_SERVER, submits),
    ("On a cluster", "raveval submit run.yaml --stop"): Checked(NO_SERVER, parses),
    ("On a cluster", "raveval submit run.yaml"): Checked(NO_SERVER, submits),
    ("On a cluster", "RAY_AUTH_MODE=token raveval submit run.yaml"): Checked(NO_SERVER, submits),
    (
        "On a cluster",
        "kubectl apply -f cluster/kuberay/raycluster.yaml",
    ): Checked(NO_CLUSTER, names_a_file),
    (
        "On a cluster",
        "kubectl apply -f cluster/kuberay/rayjob.yaml",
    ): Checked(NO_CLUSTER, names_a_file),
    (
        "On a cluster",
        "kubectl port-forward service/raveval-head-svc 8265",
    ): Checked(NO_CLUSTER, names_the_service),
    (
        "On a cluster",
        "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(kubectl get secret raveval "
        "-o jsonpath='{.data.auth_token}' | base64 -d)",
    ): Checked(NO_CLUSTER, names_the_secret),
    (
        "On a cluster",
        "sbatch --nodes=2 --gpus-per-node=8 cluster/slurm.sbatch run.yaml --replicas 16",
    ): Checked(NO_CLUSTER, names_a_file),
    ("On a cluster", "ray up cluster/autoscaler.yaml"): Checked(NO_CLUSTER, names_a_file),
    ("On a cluster", "ray dashboard cluster/autoscaler.yaml"): Checked(NO_CLUSTER, names_a_file),
    ("On a cluster", "ray get-auth-token --generate"): Checked(
        "writes a token into the home directory; that Ray has the command is asked",
        is_a_command_of_ray,
    ),
    ("Many checkpoints", "raveval sweep sweep.yaml"): Run(
        "step_200", leaves="runs/swept/report.html", on_ray=True
    ),
    ("Many checkpoints", "raveval status runs/swept"): Run("step_100"),
    ("Many checkpoints", "raveval report runs/swept --format markdown"): Run("| step_200"),
    (
        "A judge of answers",
        "raveval run --model demo --judge demo --tasks demo_answers --output-path runs/judged",
    ): Run("mean_rating", {**JUDGED, **NO_DEMO}),
    (
        "A judge of answers",
        "raveval run --model ./my-checkpoint --judge prometheus-eval/prometheus-7b-v2.0 "
        "--tasks questions.yaml --output-path runs/new",
    ): Run("mean_rating", JUDGED),
    (
        "A judge of answers",
        "raveval run --model ./my-checkpoint --judge gpt-4o --judge-engine http --judge-args "
        "base_url=https://host/v1,api_key_env=MY_KEY --tasks vicuna_answers "
        "--path vicuna_eval.json --output-path runs/served",
    ): Run("judge   gpt-4o (engine http", {"raveval run": "raveval plan --engine scripted"}),
    (
        "A judge of answers",
        "raveval run --model ./newer-checkpoint --judge prometheus-eval/prometheus-7b-v2.0 "
        "--baseline runs/new --tasks questions.yaml --output-path runs/newer",
    ): Run("win_rate", JUDGED),
    (
        "A judge of answers",
        "raveval run --model ./my-checkpoint --judge ./another-judge --answers-from runs/new "
        "--tasks questions.yaml --output-path runs/again",
    ): Run("mean_rating", JUDGED),
    ("A task of your own", "raveval tasks ./capitals.yaml"): Run("Capitals of Europe."),
    (
        "A task of your own",
        "raveval plan --model demo --tasks ./capitals.yaml --output-path runs/capitals",
    ): Run("capitals: 2 examples, multiple_choice", {**PLANNED, **NO_DEMO}),
    (
        "A task of your own",
        "raveval run --model demo --tasks ./capitals.yaml --output-path runs/capitals",
    ): Run(
        "accuracy_unconditional",
        {**SCRIPTED, **NO_DEMO},
        leaves="runs/capitals/examples/capitals/00000.parquet",
    ),
    (
        "A task of your own",
        "raveval plan --model demo --tasks ./table.yaml --output-path runs/table",
    ): Run("table: 2 examples, multiple_choice", {**PLANNED, **NO_DEMO}),
    (
        "A metric of your own",
        "raveval plan --model demo --tasks rivers.yaml --output-path runs/rivers",
    ): Run("rivers: 2 examples", {**PLANNED, **NO_DEMO}),
    (
        "A metric of your own",
        "raveval run --model demo --tasks rivers.yaml --output-path runs/rivers",
    ): Run("answer_length", {**SCRIPTED, **NO_DEMO}, on_ray=True),
    (
        "A metric of your own",
        "raveval measure mylab.answers runs/rivers/records/rivers",
    ): Run("holds_reference"),
    ("An engine of your own", "mkdir poems"): Run(),
    ("An engine of your own", "cp README.md poems/text.txt"): Run(leaves="poems/text.txt"),
    ("An engine of your own", "raveval run bigram.yaml"): Run("byte_perplexity", on_ray=True),
    (
        "Predictions you already have",
        "raveval measure squad --references dev-v1.1.json --predictions predictions.json",
    ): Run("exact_match"),
    (
        "Predictions you already have",
        "raveval measure accuracy scores.jsonl --map gold=label --map logprob_nats=sum_logits "
        "--json",
    ): Run('"accuracy"'),
    (
        "Predictions you already have",
        "raveval measure correlation judged.jsonl --map rating=judge_scores "
        "--map reference_rating=human_score",
    ): Run("kendall_tau_b"),
    (
        "Predictions you already have",
        "raveval measure preference pairs.jsonl --map rating_a=score_a --map rating_b=score_b "
        "--map preferred=winner --map group=source",
    ): Run("accuracy_strict"),
    (
        "Predictions you already have",
        "raveval measure prediction_powered judged.jsonl --map rating=judge_scores "
        "--map reference_rating=human_score",
    ): Run("prediction_powered"),
    ("Comparing runs", "raveval compare runs/base runs/tuned"): Run(
        "McNemar, exact",
        before=(run_of("org/base", "runs/base"), run_of("org/tuned", "runs/tuned")),
    ),
    (
        "lm-eval's files, and trackers",
        "raveval export runs/first --log-samples --output-path lm_eval_results",
    ): Run(edits=EXPORTED, before=(run_of("org/model", "runs/exported"),)),
    (
        "lm-eval's files, and trackers",
        "raveval import lm_eval_results/org__model --output-path runs/theirs",
    ): Run(leaves="runs/theirs/results.json"),
    ("lm-eval's files, and trackers", "raveval compare runs/first runs/theirs"): Run(
        "demo_choice", EXPORTED
    ),
    (
        "lm-eval's files, and trackers",
        "raveval import checkpoint_results --output-path runs/training",
    ): Run("runs/training/report.html", leaves="runs/training/report.html"),
    ("lm-eval's files, and trackers", "raveval report runs/training"): Run("step2000"),
    ("Developing", "make check"): Checked(ITSELF, is_a_target),
    ("Developing", "make test"): Checked(ITSELF, is_a_target),
    ("Developing", "make chaos"): Checked("an hour; test_chaos has some rounds of it", is_a_target),
}


def is_a_task(text: str, world: Path) -> None:
    (world / "fragment.yaml").write_text(text)
    assert load_task(str(world / "fragment.yaml")).name == "fragment"


def is_an_engine_section(text: str, world: Path) -> None:
    section = yaml.safe_load(text)["engine"]
    name = section.pop("name")
    assert engine_options(EngineConfig(name=name, options=section)).concurrency == 64


ROWS = "its data is not shown; that it is a task, with its keys, is checked"

BLOCKS: Mapping[tuple[str, str, str], File | Run | Checked] = {
    # (section, language, how it begins)
    ("On one machine", "yaml", "evaluate:"): File(
        "run.yaml", {"engine: vllm ": "engine: scripted "}
    ),
    ("On one machine", "python", "import raveval"): Run("0."),
    ("On a cluster", "yaml", "evaluate:"): File("run.yaml"),
    ("Many checkpoints", "yaml", "evaluate:"): File(
        "run.yaml",
        {
            "evaluate:": "evaluate:\n  engine: scripted",
            "[arc_easy, squad]": "[demo_choice]",  # processes of their own ask the real hub
        },
    ),
    ("Many checkpoints", "yaml", "base: run.yaml"): File("sweep.yaml"),
    ("A judge of answers", "yaml", "protocol: open_generation"): File("questions.yaml"),
    ("A judge of answers", "json", '{"question"'): File("questions.jsonl"),
    ("A judge of answers", "yaml", "criteria:"): File("rubric.yaml"),
    ("A task of your own", "json", '{"country"'): File("capitals.jsonl"),
    ("A task of your own", "yaml", "protocol: multiple_choice"): File("capitals.yaml"),
    ("A task of your own", "csv", "country,a,b,c"): File("table.csv"),
    ("A task of your own", "yaml", "source: {path: table.csv}"): File("table.yaml"),
    ("A task of your own", "yaml", "protocol: question_answering"): Checked(ROWS, is_a_task),
    ("A task of your own", "yaml", "protocol: language_modelling"): Checked(ROWS, is_a_task),
    ("A metric of your own", "python", '"""Whether an answer'): File("mylab/answers.py"),
    ("A metric of your own", "yaml", "protocol: question_answering"): File("rivers.yaml"),
    ("A metric of your own", "json", '{"city"'): File("rivers.jsonl"),
    ("An engine of your own", "python", '"""A byte bigram'): File("mylab/bigram.py"),
    ("An engine of your own", "yaml", "evaluate:"): File("bigram.yaml"),
    ("A model on a server", "yaml", "engine:"): Checked(
        "needs a server; tests/end_to_end/test_http_engine.py asks one", is_an_engine_section
    ),
    ("Predictions you already have", "python", "import pyarrow"): Run("Estimate(value="),
    ("Evaluator models", "yaml", "protocol: absolute_grading"): Checked(ROWS, is_a_task),
}


@dataclass(frozen=True)
class Page:
    """A section of the README: its blocks of a language, and the lines of its other blocks."""

    name: str
    blocks: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


def pages() -> Iterator[Page]:
    """Blocks without a language hold commands; what commands print stands in blocks of `text`."""
    for part in re.split(r"^(?:# (?=raveval$)|## )", README, flags=re.MULTILINE)[1:]:
        found = re.findall(r"^```(\w*)\n(.*?)^```", part, flags=re.MULTILINE | re.DOTALL)
        lines = [line for language, text in found if not language for line in text.splitlines()]
        yield Page(
            name=part.split("\n", 1)[0],
            blocks=tuple((lang, text) for lang, text in found if lang not in ("", "text")),
            commands=tuple(re.sub(r"\s+# .*", "", line) for line in lines if line.strip()),
        )


PAGES = {page.name: page for page in pages()}


def entry_of(page: str, language: str, text: str) -> File | Run | Checked:
    fitting = [
        entry
        for (name, kind, start), entry in BLOCKS.items()
        if (name, kind) == (page, language) and text.startswith(start)
    ]
    assert len(fitting) == 1, f"{len(fitting)} entries of BLOCKS fit {language} of {page}: {text}"
    return fitting[0]


def test_every_command_and_block_has_its_entry() -> None:
    found = {(page.name, command) for page in PAGES.values() for command in page.commands}
    assert found == set(COMMANDS)
    blocks = [(page.name, *block) for page in PAGES.values() for block in page.blocks]
    for block in blocks:
        entry_of(*block)
    assert len(blocks) == len(BLOCKS)


def test_every_page_is_listed_and_every_link_leads_somewhere() -> None:
    anchors = {re.sub(r"[^a-z -]", "", name.lower()).replace(" ", "-") for name in PAGES}
    links = re.findall(r"\]\(#([^)]+)\)", README)
    assert set(links) <= anchors
    screen = README.split("\n## ", 1)[0]
    unlisted = {"raveval", "developing", "changes"}
    assert set(re.findall(r"\]\(#([^)]+)\)", screen)) == anchors - unlisted


def test_commands_and_flags_in_sentences_exist() -> None:
    commands: Any = typer.main.get_command(app)
    flags = {
        name: {
            flag
            for parameter in command.params
            for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        for name, command in commands.commands.items()
    }
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text)
    ours = [span.split() for span in spans if span.startswith("raveval ")]
    assert len(ours) > 20
    for _, name, *words in ours:
        assert name in flags
        assert {word for word in words if word.startswith("--")} <= flags[name]
    alone = {span.split()[0] for span in spans if span.startswith("--")}
    assert len(alone) > 10
    assert alone <= set.union(*flags.values())


def test_the_protocols_named_beside_the_chat_template_are_those_that_prefer_it() -> None:
    (row,) = (line for line in README.splitlines() if line.startswith("| `evaluate.chat`"))
    protocols = registry.names("protocols")
    named = {name for name in protocols if f"`{name}`" in row}
    assert named == {name for name in protocols if load_protocol(name).PREFERS_CHAT}


def test_ways_to_read_a_cell_give_what_the_page_says() -> None:
    """Each row of the table: the values of its cell, and the expressions that read them."""
    rows = re.findall(r"^\| (`\w+` (?:is|holds) .*) \| (`\w+: .*) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 5
    made = []
    for cell, reading in rows:
        column = cell.split("`")[1]
        values = [value.replace("\\|", "|") for value in cell.split("`")[3::2]]
        keys = [code.replace("\\|", "|") for code in reading.split("`")[1::2]]
        for number, key in enumerate(keys):
            (source,) = yaml.safe_load(key).values()
            cells = {"right": "Paris", column: values[min(number, len(values) - 1)]}
            made.append(templates.expression(source).value(cells))
    choices = ["Lyon", "Paris", "Nice"]
    assert made == [1, 1, 1, choices, 1, ["Paris"], ["Paris", "Lutetia"]]


def test_other_programs_in_sentences_have_what_they_name() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for program, rest in re.findall(r"`(python|ray|pip|make|pytest|source) ([^`\n]+)`", README):
        names = [word for word in rest.split() if word.endswith((".py", ".yaml"))]
        assert all((ROOT / name).is_file() for name in names if name != "run.yaml"), rest
        for module in re.findall(r"-m (tests\.\S+)", rest):
            assert importlib.util.find_spec(module), rest
        for extra in re.findall(r"raveval\[(\w+)\]", rest):
            assert f"\n{extra} = [" in project, rest
        if program == "make":
            subprocess.run(["make", "--dry-run", rest], cwd=ROOT, check=True, capture_output=True)


@dataclass(frozen=True)
class Shell:
    """The process that the commands run in, and the directory that it is in."""

    process: subprocess.Popen[str]
    world: Path

    def run(self, command: str, entry: Run) -> None:
        for needed in entry.before:
            self.run(needed, Run())
        for old, new in entry.edits.items():
            command = command.replace(old, new)
        if command.startswith("raveval "):
            self._ask(command, entry, arguments=command.split()[1:])
        else:
            subprocess.run(command, shell=True, cwd=self.world, check=True)
        assert not entry.leaves or (self.world / entry.leaves).is_file(), command

    def run_python(self, code: str, entry: Run) -> None:
        self._ask(code, entry, code=code)

    def _ask(self, what: str, entry: Run, **request: Any) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**request, "on_ray": entry.on_ray}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["code"] == 0, f"{what}\n{answer['out']}{answer['err']}"
        assert entry.says in answer["out"], f"{what}\n{answer['out']}{answer['err']}"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    world = tmp_path_factory.mktemp("reader")
    furnish(world)
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "MY_KEY": "k"}
    kept = ("PATH", "HOME", "TMPDIR", "LANG")
    environment |= {name: os.environ[name] for name in kept if name in os.environ}
    with (world / "errors.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(PROCESS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=world,
            env=environment,
        )
        with process:
            yield Shell(process, world)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(timeout=60) == 0


def furnish(world: Path) -> None:
    """Lay out what the README takes to be there: a checkpoint, the hub's rows, predictions."""
    for checkpoint in ("my-checkpoint", "newer-checkpoint", "another-judge"):
        (world / checkpoint).mkdir()
        (world / checkpoint / "config.json").write_text(json.dumps({"name": checkpoint}))
    for step in (100, 200):
        (world / "checkpoints" / f"step_{step}").mkdir(parents=True)
        (world / "checkpoints" / f"step_{step}" / "config.json").write_text("{}")
    shutil.copy(ROOT / "README.md", world / "README.md")
    arc = [
        {
            "id": f"q{n}",
            "question": f"What is {n} and one?",
            "choices": {"text": [f"{n + 1}", f"{n}"], "label": ["A", "B"]},
            "answerKey": "A",
        }
        for n in range(6)
    ]
    squad = [
        {
            "id": f"s{n}",
            "title": "Numbers",
            "context": f"After {n} comes {n + 1}.",
            "question": f"What comes after {n}?",
            "answers": {"text": [f"{n + 1}"], "answer_start": [0]},
        }
        for n in range(6)
    ]
    for dataset, files, rows in (
        ("allenai/ai2_arc", ("ARC-Easy/test", "ARC-Easy/train"), arc),
        ("rajpurkar/squad", ("plain_text/validation", "plain_text/train"), squad),
    ):
        for number, file in enumerate(files):
            path = world / "hub" / dataset / f"{file}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            own = json.loads(json.dumps(rows).replace("What", ("What", "Which number")[number]))
            pq.write_table(pa.Table.from_pylist(own), path)
    questions = [
        {"id": row["id"], "question": row["question"], "answers": [{"text": "1"}]} for row in squad
    ]
    articles = [{"title": "Numbers", "paragraphs": [{"context": "0, 1", "qas": questions}]}]
    (world / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    (world / "predictions.json").write_text(json.dumps({row["id"]: "1" for row in squad}))
    scores = {"label": 1, "sum_logits": [-2.5, -1.5], "n_tokens": [1, 1], "n_chars": [4, 5]}
    scores |= {"n_bytes": [4, 5], "scoring": "raw"}
    write_rows(world / "scores.jsonl", [scores, {**scores, "label": 0}])
    judged = [(4, 5), (2, 1), (3, 3), (5, 4), (1, 2), (2, None)]
    write_rows(
        world / "judged.jsonl",
        [{"judge_scores": [judge, judge], "human_score": human} for judge, human in judged],
    )
    pairs = [(4, 2, "a"), (1, 3, "a"), (3, 3, "tie"), (2, 5, "b")]
    write_rows(
        world / "pairs.jsonl",
        [{"score_a": a, "score_b": b, "winner": w, "source": "chat"} for a, b, w in pairs],
    )
    for step, p in ((1000, 0.25), (2000, 0.75)):
        config = {"model": "hf", "model_args": f"pretrained=org/model,revision=step{step}"}
        folder = world / "checkpoint_results" / f"step{step}"
        lm_eval_files.write(folder, {"t": lm_eval_files.proportion("acc", p, 9)}, config=config)
    from tests.unit.test_catalog import GRADED

    (world / "vicuna_eval.json").write_text(json.dumps([GRADED]))
    demo = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    demo["evaluate"] = {"model": "org/model", "engine": "scripted", "tasks": ["demo_choice"]}
    (world / "configs").mkdir()
    (world / "configs" / "demo.yaml").write_text(yaml.safe_dump(demo))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.ray
@pytest.mark.parametrize(
    "name", [name for name, page in PAGES.items() if page.commands or page.blocks]
)
def test_a_page_works_as_it_stands(
    shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGES[name]
    monkeypatch.chdir(shell.world)
    snippets = []
    for language, text in page.blocks:
        entry = entry_of(name, language, text)
        if isinstance(entry, File):
            for old, new in entry.edits.items():
                assert old in text
                text = text.replace(old, new)
            (shell.world / entry.name).parent.mkdir(exist_ok=True)
            (shell.world / entry.name).write_text(text)
        elif isinstance(entry, Checked):
            entry.check(text, shell.world)
        else:
            snippets.append((text, entry))
    for command in page.commands:
        found = COMMANDS[name, command]
        if isinstance(found, Checked):
            found.check(command, shell.world)
        else:
            shell.run(command, found)
    for code, run in snippets:
        shell.run_python(code, run)
