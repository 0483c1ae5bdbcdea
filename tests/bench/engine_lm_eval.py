"""Scores ready prompts with lm-eval's vLLM backend. Runs by itself, in an environment of its own.

    PYTHON engine_lm_eval.py MODEL PROMPTS OUTPUT BATCH_SIZE MODEL_ARGS

PROMPTS is JSONL with `query`, `choices` and `gold`, a zero-shot task. MODEL_ARGS is JSON, given to
the backend as they are. OUTPUT gets the log-likelihoods in the order of PROMPTS, and what it took.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil


def main() -> None:
    began = time.time()
    model, prompts, output, batch_size, model_args = sys.argv[1:]
    lm_eval = importlib.import_module("lm_eval")
    backend = importlib.import_module("lm_eval.models.vllm_causallms").VLLM

    took: dict[str, float] = {}
    score = backend.loglikelihood

    def timed(self: Any, requests: Any, disable_tqdm: bool = False) -> Any:
        cpu, start = tree_cpu_seconds(), time.perf_counter()
        result = score(self, requests, disable_tqdm=True)
        took["wall_seconds"] = time.perf_counter() - start
        took["cpu_seconds"] = tree_cpu_seconds() - cpu
        return result

    backend.loglikelihood = timed
    task = {
        "task": "ready_prompts",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": prompts}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "target_delimiter": "",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc"}],
    }
    results = lm_eval.simple_evaluate(
        model="vllm",
        model_args={"pretrained": model, **json.loads(model_args)},
        tasks=[task],
        batch_size=batch_size if batch_size == "auto" else int(batch_size),
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(results["samples"]["ready_prompts"], key=lambda sample: sample["doc_id"])
    found = {
        **took,
        "whole_seconds": time.time() - began,
        "logprob_nats": [[float(r[0]) for r in sample["filtered_resps"]] for sample in samples],
    }
    Path(output).write_text(json.dumps(found))


def tree_cpu_seconds() -> float:
    """Return the CPU seconds that this process and those below it have taken so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


if __name__ == "__main__":
    main()
