"""WikiText-2's validation part, whole, in windows of several sizes: are all tokens scored, alike?

    python -m tests.bench.rolling_windows MODEL DATA [--windows 256 512 2048] [--output DIR]

scores the text with vLLM and with transformers, both in float32, once for each window (a context of
`max_model_len` tokens), and prints: the tokens that were scored and those that the tokenizer makes
of the text, which have to be equal each time, and by how much the engines' perplexities differ,
which has to stay below 0.1 %. Rerunning goes on where it stopped.
"""

import argparse
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from transformers import AutoTokenizer

import raveval

ENGINES = ("vllm", "transformers")
TOLERANCE = 1e-3


def main() -> None:
    """Run, compare and print; exit with 1 where anything differs by more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--windows", type=int, nargs="+", default=[256, 512, 2048])
    parser.add_argument("--output", type=Path, default=Path("runs/rolling_windows"))
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    is_wrong = False
    for window in given.windows:
        perplexities = {}
        for engine in ENGINES:
            directory = given.output / f"{engine}-{window}"
            began = time.monotonic()
            perplexity = scored(given.model, given.data, engine, window, directory)
            expected = n_tokens_of_examples(directory, tokenizer)
            found = total_of(directory, "n_tokens")
            perplexities[engine] = perplexity
            is_wrong |= found != expected
            print(
                f"window {window}, {engine}: {found} tokens scored of {expected} in "
                f"{total_of(directory, 'n_windows')} windows, token perplexity {perplexity:.6f} "
                f"({time.monotonic() - began:.0f} s)",
                flush=True,
            )
        ratio = perplexities["vllm"] / perplexities["transformers"] - 1
        is_wrong |= abs(ratio) > TOLERANCE
        print(f"window {window}: vllm / transformers - 1 = {ratio:+.2e}", flush=True)
    sys.exit(int(is_wrong))


def scored(model: str, data: Path, engine: str, window: int, directory: Path) -> float:
    """Run one engine with one window and return the perplexity per token."""
    text = data / "text" / "wikitext2.valid.raw"
    config = {
        "evaluate": {
            "model": {"path": model, "dtype": "float32", "max_model_len": window},
            "engine": engine,
            "tasks": [{"task": "wikitext2", "path": str(text)}],
        },
        "run": {"output": str(directory), "shard_size": 4},
    }
    value = raveval.run(config).tasks["wikitext2"].metrics["token_perplexity"].value
    assert value is not None
    return value


def n_tokens_of_examples(directory: Path, tokenizer: AutoTokenizer) -> int:
    """Count the tokens of the documents anew, by the tokenizer alone."""
    texts = pq.read_table(directory / "examples" / "wikitext2")["text"].to_pylist()
    return sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)


def total_of(directory: Path, column: str) -> int:
    """Sum a column of the records."""
    files = sorted((directory / "records" / "wikitext2").glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(f, columns=[column], partitioning=None) for f in files)
    return int(pc.sum(table[column]).as_py())


if __name__ == "__main__":
    main()
