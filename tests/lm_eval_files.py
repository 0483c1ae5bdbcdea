"""Files as lm-eval 0.4.13 writes them, made by its own rules and none of raveval's code."""

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

DATE = "2026-03-01T12-00-00.123456"
Sample = dict[str, Any]


def choice(
    doc_id: int, nats: Sequence[float], texts: Sequence[str], gold: int, **columns: Any
) -> Sample:
    """A sample of multiple choice; `texts` without the space that stands before each."""
    ranked = max(range(len(nats)), key=lambda j: nats[j])
    by_length = max(range(len(nats)), key=lambda j: nats[j] / len(texts[j]))
    return sample(
        doc_id,
        target=str(gold),
        arguments=[[f"Question {doc_id}?\nAnswer:", f" {text}"] for text in texts],
        filtered=[[str(each), str(each > -1)] for each in nats],
        metrics={"acc": float(ranked == gold), "acc_norm": float(by_length == gold)},
        **columns,
    )


def answer(doc_id: int, text: str, target: str, *, score: float, filter: str = "none") -> Sample:
    """A sample of a generated answer, as some rule of lm-eval's scored it."""
    generation = {"until": ["\n"], "max_gen_toks": 16}
    return sample(
        doc_id,
        target=target,
        arguments=[[f"Q: {doc_id}\nA:", generation]],
        filtered=[text],
        metrics={"exact_match": score},
        filter=filter,
    )


def document(doc_id: int, nats: float, text: str, *, n_words: int, n_bytes: int) -> Sample:
    """A sample of rolling log-likelihoods."""
    words, octets = [nats, n_words], [nats, n_bytes]
    metrics = {"word_perplexity": words, "byte_perplexity": octets, "bits_per_byte": octets}
    return sample(doc_id, target=text, arguments=[[text]], filtered=[str(nats)], metrics=metrics)


def continuation(doc_id: int, nats: float, text: str, *, is_greedy: bool) -> Sample:
    """A sample of one continuation's log-likelihood."""
    return sample(
        doc_id,
        target=text,
        arguments=[[f"Context {doc_id}", text]],
        filtered=[[str(nats), str(is_greedy)]],
        metrics={"perplexity": nats, "acc": int(is_greedy)},
    )


def sample(
    doc_id: int,
    *,
    target: str,
    arguments: Sequence[Sequence[Any]],
    filtered: Sequence[Any],
    metrics: Mapping[str, Any],
    filter: str = "none",
    doc: Mapping[str, Any] | None = None,
) -> Sample:
    return {
        "doc_id": doc_id,
        "doc": dict(doc or {"number": doc_id}),
        "target": target,
        "arguments": {
            f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(each)}
            for i, each in enumerate(arguments)
        },
        "resps": [[each] for each in filtered],
        "filtered_resps": list(filtered),
        "filter": filter,
        "metrics": list(metrics),
        "doc_hash": f"doc {doc_id}",
        "prompt_hash": f"prompt {doc_id}",
        "target_hash": f"target {doc_id}",
        **metrics,
    }


def proportion(name: str, p: float, n: int, *, filter: str = "none") -> dict[str, float]:
    """A mean of zeros and ones with the standard error that lm-eval gives it."""
    return {f"{name},{filter}": p, f"{name}_stderr,{filter}": sqrt(p * (1 - p) / (n - 1))}


def means(samples: Sequence[Sample], *names: str) -> dict[str, float]:
    """Those metrics of samples that are means of zeros and ones, with their standard errors."""
    found: dict[str, float] = {}
    for name in names:
        n = len(samples)
        found |= proportion(name, sum(each[name] for each in samples) / n, n)
    return found


def write(
    folder: Path,
    results: Mapping[str, Mapping[str, Any]],
    samples: Mapping[str, Sequence[Sample]] | None = None,
    *,
    date: str = DATE,
    num_fewshot: int = 0,
    n_samples: Mapping[str, int] | None = None,
    **content: Any,
) -> Path:
    """Write a results file and its samples files; return the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {task: len({s["doc_id"] for s in each}) for task, each in (samples or {}).items()}
    counts |= n_samples or {}
    full = {
        "results": {task: {"alias": task, **metrics} for task, metrics in results.items()},
        "group_subtasks": {task: [] for task in results},
        "configs": {task: {"task": task, "target_delimiter": " "} for task in results},
        "versions": dict.fromkeys(results, 1.0),
        "n-shot": dict.fromkeys(results, num_fewshot),
        "higher_is_better": {},
        "n-samples": {t: {"original": n, "effective": n} for t, n in counts.items()},
        "config": {"model": "hf", "model_args": "pretrained=org/model,revision=step1000"},
        "date": 1772366400.5,
        "lm_eval_version": "0.4.13",
        "model_name": "org/model",
        "total_evaluation_time_seconds": "61.5",
        **content,
    }
    path = folder / f"results_{date}.json"
    path.write_text(json.dumps(full))
    for task, each in (samples or {}).items():
        write_samples(folder / f"samples_{task}_{date}.jsonl", each)
    return path


def write_samples(path: Path, samples: Sequence[Sample]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in samples))
    return path
