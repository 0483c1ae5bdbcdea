"""Reduces 10^6 and 10^7 stored multiple-choice records; shows that memory does not grow.

    python -m tests.bench.reduce_records [ROWS…]

Records of four choices, with all columns that a run commits, are written as Parquet files of
500 000 rows into a temporary folder and measured by `raveval measure accuracy FOLDER` in a process
of its own. Printed: rows a second of that process (wall clock, start and imports included), its CPU
time and the largest memory it ever had.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

N_CHOICES = 4
ROWS_A_FILE = 500_000
ROWS_AT_ONCE = 50_000


class Cost(NamedTuple):
    """What a process took."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def write_records(folder: Path, n: int) -> float:
    """Write `n` records; return the size of the files in MiB."""
    rng = np.random.default_rng(0)
    for start in range(0, n, ROWS_A_FILE):
        writer = None
        for first in range(start, min(start + ROWS_A_FILE, n), ROWS_AT_ONCE):
            table = records(rng, first, min(ROWS_AT_ONCE, n - first))
            path = folder / f"{start // ROWS_A_FILE:05d}.parquet"
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
        if writer:
            writer.close()
    return sum(file.stat().st_size for file in folder.iterdir()) / 2**20


def records(rng: np.random.Generator, first: int, n: int) -> pa.Table:
    """Return `n` records; log-likelihoods are multiples of 2^-10: some tie, files are small."""
    size = n * N_CHOICES
    offsets = pa.array(np.arange(0, size + 1, N_CHOICES, dtype=np.int32))

    def per_choice(values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values))

    def nats() -> np.ndarray:
        return -np.round(rng.exponential(8, size) * 1024) / 1024

    n_tokens = rng.integers(1, 9, size, np.int32)
    return pa.table(
        {
            "id": [f"example-{i}" for i in range(first, first + n)],
            "row_key": rng.integers(0, 2**63, n).astype(np.uint64),
            "group": pa.nulls(n, pa.string()),
            "cluster": pa.nulls(n, pa.string()),
            "status": ["ok"] * n,
            "gold": rng.integers(0, N_CHOICES, n, np.int32),
            "scoring": ["per_char"] * n,
            "logprob_nats": per_choice(nats()),
            "unconditional_nats": per_choice(nats()),
            "n_tokens": per_choice(n_tokens),
            "n_chars": per_choice(4 * n_tokens),
            "n_bytes": per_choice(4 * n_tokens + 1),
        }
    )


def cost_of(folder: Path) -> tuple[Cost, int]:
    """Measure a folder in a process of its own; return its cost and how many rows it counted."""
    command = [sys.executable, "-m", "raveval", "measure", "accuracy", str(folder), "--json"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        # The usage of this one child: that of all children would keep an earlier one's peak.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    cpu_seconds = usage.ru_utime + usage.ru_stime
    n = json.loads(printed)["accuracy"]["n"]
    return Cost(seconds, cpu_seconds, usage.ru_maxrss * unit / 2**20), n


def main(sizes: list[int]) -> None:
    """Print one line for each number of rows."""
    for n in sizes:
        with tempfile.TemporaryDirectory() as name:
            mib = write_records(Path(name), n)
            cost, counted = cost_of(Path(name))
        assert counted == n, f"{counted} of {n} rows were counted"
        print(
            f"{n:>11,} records, {mib:6.0f} MiB: {cost.seconds:6.1f} s, "
            f"{n / cost.seconds:12,.0f} rows/s, CPU {cost.cpu_seconds:6.1f} s, "
            f"peak memory {cost.peak_mib:6.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [1_000_000, 10_000_000])
