"""The process in which the README's commands run: one after the other, on one Ray.

It is started in a reader's directory, as the `raveval` command is: neither that directory nor the
one of this file is on the path. The hub is the folder `hub`, a dataset's files below its name.
A replica is an actor of Ray where the request says so. Elsewhere it works in this process, which
saves some seconds each time: what Ray does with it is tested by test_run and its neighbours.
It reads requests, one JSON to a line, and answers each with one.
"""

import asyncio
import contextlib
import io
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray

from raveval import pipeline
from raveval.tasks import hub
from raveval.types import Shard
from raveval.worker import ShardWorker, WorkerSpec

_ON_RAY = pipeline.execute


def _in_this_process(
    shards: Sequence[tuple[int, Shard]], spec: WorkerSpec, placement: Any, *, say: Any
) -> Iterator[pipeline.ShardDone]:
    worker = ShardWorker(spec)

    async def finish(run: int, shard: Shard) -> dict[str, Any]:
        batch = {key: [value] for key, value in {"run": run, **asdict(shard)}.items()}
        (row,) = [row async for row in worker(batch)]
        return {key: value for key, (value,) in row.items()}

    for run, shard in shards:
        row = asyncio.run(finish(run, shard))
        if row["error"]:
            raise RuntimeError(row["error"])
        yield pipeline.ShardDone(row["n_examples"], row["n_missing"], row["n_tokens"])


def _commanded(arguments: list[str]) -> None:
    from raveval.cli import main

    sys.argv = ["raveval", *arguments]
    main()


def _run_python(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    pipeline.execute = _ON_RAY if request.pop("on_ray") else _in_this_process
    run: Callable[[Any], None] = _commanded if "arguments" in request else _run_python
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run(next(iter(request.values())))
        except SystemExit as exc:
            code = exc.code or 0
        except Exception:  # noqa: BLE001 - told to the test
            traceback.print_exc()
            code = 1
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def _list_files(dataset: str, revision: str) -> tuple[str, list[str]]:
    root = Path("hub", dataset)
    return "0" * 40, [str(path.relative_to(root)) for path in root.rglob("*.parquet")]


def _main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    hub._list_files = _list_files
    hub._download = lambda dataset, file, sha: str(Path("hub", dataset, file))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()
    ray.shutdown()


if __name__ == "__main__":
    _main()
