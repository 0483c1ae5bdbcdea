"""A model as an evaluator, in vLLM in the replicas against vLLM's own OpenAI server.

    python -m tests.bench.judge_agreement MODEL DATA_DIR [--max-output-tokens 256]

MODEL is a checkpoint, DATA_DIR the folder with `prometheus/vicuna_eval.json` and
`prometheus/hhh_alignment_eval.json`. The first 24 examples of each are graded as the catalogue has
it (vicuna_bench, hhh_alignment), and once more at temperature 0 with one attempt a verdict; so are
the demo's, whose shorter prompts a small model can answer. First by the engine vllm in a replica,
then by the engine http (completions) and a server that is started here. Prints the numbers of both
side by side, and checks

- that every example has a status, and every attempt, refusal, tie and token is accounted for;
- that both were given the same prompts, token for token: the ids that the replica hands to vLLM,
  those that http puts on the wire, those that the server says it has read and counted, what its own
  chat template makes of the same turns, and what the encoder makes of the stored examples;
- how many texts are equal.

Exit code 1 where prompts or sums are not as they should be. Started again it does what is missing.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from raveval import tasks
from raveval.engines._encoding import Encoder
from raveval.engines._http_server import _CANARY as FIRST
from raveval.report.numbers import interval_text, value_text
from raveval.report.render import print_cells
from raveval.report.tables import Column, Table
from raveval.types import Completion, Failure, Generate, ModelRef, Prompt, TaskResults
from tests.bench.judged_run import Attempt, JudgedTask
from tests.bench.judged_sides import Asked, Given, Side, in_replicas, on_server, reading_key

FILES = {"vicuna_bench": "vicuna_eval.json", "hhh_alignment": "hhh_alignment_eval.json"}
SHOWN = (
    *("pearson", "spearman", "kendall_tau_b", "exact_agreement", "mean_rating"),
    *("reference_pearson", "accuracy_strict", "accuracy_without_human_ties"),
    *("accuracy_without_ties", "tie_rate", "verdict_kappa"),
)
MOST_SHOWN = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--examples", type=int, default=24)
    parser.add_argument("--max-output-tokens", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--output", type=Path, default=Path("runs/judge_agreement"))
    arguments = parser.parse_args()
    output = arguments.output / str(arguments.max_output_tokens)
    output.mkdir(parents=True, exist_ok=True)
    model = ModelRef(path=str(arguments.model), max_model_len=arguments.max_model_len)
    given = {"limit": arguments.examples}
    sampling = {"max_output_tokens": arguments.max_output_tokens}
    entries = list(_entries(arguments.data / "prometheus", given, sampling, output))
    replicas = in_replicas(model, entries, output)
    server = on_server(model, entries, output)
    for name in replicas.results.tasks:
        _print_numbers(name, replicas, server)
    seconds = " and ".join(f"{side.name} {side.seconds:.0f}" for side in (replicas, server))
    print(f"\nwall seconds of the runs, replicas' start included: {seconds}")
    encoder = Encoder.load(model)
    problems = [
        p for side in (replicas, server) for task in side.tasks.values() for p in task.problems
    ]
    for name in replicas.tasks:
        problems += _compare_prompts(name, replicas, server, encoder)
    problems += [*_unasked(replicas), *_unasked(server)]
    for name in replicas.tasks:
        _compare_texts(name, replicas.tasks[name], server.tasks[name])
    print(f"\n{len(problems)} prompts or sums are not as they should be")
    for problem in problems[:MOST_SHOWN]:
        print(f"  {problem}")
    sys.exit(bool(problems))


def _entries(
    data: Path, given: dict[str, Any], sampling: dict[str, Any], output: Path
) -> Iterator[dict[str, Any]]:
    """Yield each task of the catalogue, and the same asked greedily and once; then the demo's."""
    catalog = Path(tasks.__file__).parent / "catalog"
    for name, file in FILES.items():
        entry = {**given, "path": str(data / file)}
        yield {**entry, "task": name, "sampling": sampling}
        content = yaml.safe_load((catalog / f"{name}.yaml").read_text(encoding="utf-8"))
        content["grading"] |= {"samples": 1, "max_attempts": 1, "max_tie_rounds": 0}
        greedy = output / f"{name}_greedy.yaml"
        greedy.write_text(yaml.safe_dump(content), encoding="utf-8")
        greedily = {**sampling, "temperature": 0.0, "top_p": 1.0}
        yield {**entry, "task": str(greedy), "sampling": greedily}
    for name in ("demo_grading", "demo_ranking"):
        yield {**given, "task": name, "sampling": sampling}


def _compare_prompts(name: str, replicas: Side, server: Side, encoder: Encoder) -> list[str]:
    """Print how many prompts were compared, and return what differs."""
    expected: dict[Prompt, tuple[int, ...]] = {}
    problems, n_tokens, n_again, n_named = [], 0, 0, 0
    for side in (replicas, server):
        for key, attempt in side.tasks[name].attempts.items():
            prompt = attempt.request.prompt
            if prompt not in expected:
                expected[prompt] = _encoded(encoder, attempt.request)
            found = side.given[_asked(attempt)]
            n_tokens += sum(len(given.token_ids) for given in found)
            n_again += len(found) - 1
            n_named += sum(given.read is not None for given in found)
            words = _differing(attempt, expected[prompt], found)
            problems += [f"{name}: {side.name}: {'#'.join(key)}: {each}" for each in words]
    for prompt, ids in expected.items():
        own = server.readings.get(reading_key(prompt))
        if own != ids:
            problems.append(f"{name}: the server itself reads {own and own[:8]} for {ids[:8]}")
    ours, theirs = replicas.tasks[name].attempts, server.tasks[name].attempts
    both = ours.keys() & theirs.keys()
    for key in both:
        a, b = replicas.given[_asked(ours[key])], server.given[_asked(theirs[key])]
        if {given.token_ids for given in a} != {given.token_ids for given in b}:
            problems.append(f"{name}: {'#'.join(key)}: the two were given other token ids")
    print(
        f"\n{name}: {len(ours)} and {len(theirs)} attempts, {len(both)} of them the same question; "
        f"{n_again} asked again after a fault\n  {len(expected)} prompts, {n_tokens} token ids "
        f"compared ({n_named} prompts named id by id by the server); {len(problems)} problems"
    )
    return problems


def _encoded(encoder: Encoder, request: Generate) -> tuple[int, ...]:
    encoded = encoder.generate(request)
    assert not isinstance(encoded, Failure), encoded.message
    return encoded.token_ids


def _asked(attempt: Attempt) -> Asked:
    return attempt.request.sampling.seed, attempt.request.sampling.temperature


def _differing(attempt: Attempt, ids: tuple[int, ...], found: list[Given]) -> Iterator[str]:
    """Yield how what a model was given differs from what was to be asked."""
    if not found:
        yield "it was never given"
    for given in found:
        if given.token_ids != ids:
            yield f"it was given {len(given.token_ids)} other tokens than the {len(ids)} encoded"
        if given.sampling != attempt.request.sampling:
            yield f"it was given {given.sampling} instead of {attempt.request.sampling}"
        if given.counted not in (None, len(ids)):
            yield f"the server counts {given.counted} tokens instead of {len(ids)}"
        if given.read not in (None, ids):
            yield "the server names other tokens than it was sent"
    reply = attempt.reply
    if isinstance(reply, Completion) and reply.n_prompt_tokens != len(ids):
        yield f"the stored reply counts {reply.n_prompt_tokens} prompt tokens instead of {len(ids)}"


def _unasked(side: Side) -> Iterator[str]:
    """Yield what a model was given that no attempt accounts for, but for a new client's first."""
    asked = {_asked(each) for task in side.tasks.values() for each in task.attempts.values()}
    n_attempts = sum(len(task.attempts) for task in side.tasks.values())
    if len(asked) != n_attempts:
        yield f"{side.name}: {n_attempts} attempts share {len(asked)} seeds"
    others = side.given.keys() - asked - {(FIRST.sampling.seed, FIRST.sampling.temperature)}
    if others:
        yield f"{side.name}: {len(others)} prompts belong to no attempt"


def _compare_texts(name: str, a: JudgedTask, b: JudgedTask) -> None:
    """Print how many texts of the same question are equal, and where the others part."""
    both = sorted(a.attempts.keys() & b.attempts.keys())
    differing = [key for key in both if a.attempts[key].reply != b.attempts[key].reply]
    verdicts = ("status", "rating", "verdict", "scores_a", "scores_b")
    n_alike = sum(
        all(row.get(column) == b.records[id].get(column) for column in verdicts)
        for id, row in a.records.items()
    )
    print(
        f"{name}: {len(both) - len(differing)} of {len(both)} replies are equal (text, end and "
        f"tokens), {n_alike} of {len(a.records)} examples have the same status and verdicts"
    )
    for key in differing[:MOST_SHOWN]:
        print(f"  {'#'.join(key)}: {_parting(a.attempts[key], b.attempts[key])}")


def _parting(a: Attempt, b: Attempt) -> str:
    if not isinstance(a.reply, Completion) or not isinstance(b.reply, Completion):
        return f"{a.reply} and {b.reply}"
    texts = (a.reply.text, b.reply.text)
    n = next((i for i, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), None)
    n = min(map(len, texts)) if n is None else n
    shown = " and ".join(repr(text[max(n - 20, 0) : n + 20]) for text in texts)
    return f"part after {n} of {len(texts[0])} and {len(texts[1])} characters: {shown}"


def _print_numbers(name: str, replicas: Side, server: Side) -> None:
    columns = [Column(name, "name")]
    columns += [Column(side.name, "text") for side in (replicas, server)]
    sides = [dict(_lines(side.results.tasks[name])) for side in (replicas, server)]
    names = dict.fromkeys(key for side in sides for key in side)
    print()
    rows = [(key, *(side.get(key, "0") for side in sides)) for key in names]
    print_cells(Table(columns, rows), Console(file=sys.stdout))


def _lines(task: TaskResults) -> Iterator[tuple[str, str]]:
    for metric in SHOWN:
        if metric in task.metrics:
            value = task.metrics[metric]
            yield metric, f"{value_text(value)} {interval_text(value)} n={value.n}"
    yield "scored / attempted", f"{task.coverage.n_scored} / {task.coverage.n_attempted}"
    yield from ((status, str(n)) for status, n in task.coverage.by_status.items())
    yield from ((note, str(n)) for note, n in task.notes.items())
    yield "prompt tokens", str(task.usage.n_prompt_tokens)
    yield "output tokens", str(task.usage.n_output_tokens)
    yield "engine seconds", f"{task.usage.engine_seconds:.0f}"


if __name__ == "__main__":
    main()
