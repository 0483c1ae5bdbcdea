"""Sums of log-probabilities and entropies over chosen positions, formed beside the logits.

A request asks for them (`ask`) and reads them from its reply (`read`); `Tally` and `Step` form them
where the logits are, a bounded number of rows at a time. Position i predicts token i + 1.

The sums travel as vLLM's own prompt log-probabilities do, as pairs of values under a rank (`MARK`)
by which `read` knows them:

    row 0      sum of log-probabilities, sum of entropies
    row 1      positions summed, positions whose target is the single most probable token
    row 2 + j  log-probability of alternative j at the first position, whether it is the single
               most probable token there

Alternatives are other tokens for the first position: continuations that share a context share the
logits behind it, so the first token of all of them is scored with one of them.

The sums do not depend on how rows were grouped: each value is rounded to a grid on which float64
adds exactly, and a row is reduced over the vocabulary the same way alone and beside others.

Positions that were not computed, because a prefix cache already held them, are missing from the
count (and the alternatives, where the first one was not): whoever asks must check it.
Torch is imported inside functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import torch

START = "raveval_start"
ALTERNATIVES = "raveval_alternatives"
MARK = -7  # a rank that vLLM never reports: its own begin at 1

ROWS = {"cpu": 64}  # rows of logits held at a time; on CPUs so few that they stay in the cache
GRID = 2.0**-30  # nats; sums of less than 2**23 nats are exact on it, float32 itself is coarser
ROWS_ON_ACCELERATOR = 256  # times the vocabulary, in float32 three times over: under 0.5 GiB


@dataclass(frozen=True, slots=True)
class Sums:
    """What came back for one request; `alternatives` is empty where the first row was not computed.

    Each alternative is its log-probability and whether it is the single most probable token.
    """

    n_rows: int
    n_greedy: int
    logprob_nats: float
    entropy_nats: float
    alternatives: tuple[tuple[float, bool], ...] = ()


def ask(start: int, alternatives: Sequence[int] = ()) -> dict[str, Any]:
    """Return the `extra_args` that ask for sums over the positions from `start` on."""
    return {START: start, ALTERNATIVES: list(alternatives)}


def read(prompt_logprobs: Any) -> Sums | None:
    """Return the sums in a reply's flat prompt log-probabilities; None where vLLM made them."""
    if prompt_logprobs is None or MARK not in prompt_logprobs.ranks[:1]:
        return None
    pairs = list(zip(prompt_logprobs.logprobs[::2], prompt_logprobs.logprobs[1::2], strict=True))
    (logprob, entropy), (n_rows, n_greedy), *alternatives = pairs
    return Sums(
        int(n_rows), int(n_greedy), logprob, entropy, tuple((v, bool(g)) for v, g in alternatives)
    )


@dataclass(slots=True)
class Tally:
    """The sums of one request, over the steps in which its prompt is computed in chunks."""

    start: int
    alternatives: tuple[int, ...]
    next_row: int
    sums: torch.Tensor | None = None  # (4,): log-probability, entropy, count, greedy
    first: torch.Tensor | None = None  # (n_alternatives, 2): log-probability, greedy

    @classmethod
    def begin(cls, extra_args: Mapping[str, Any]) -> Self:
        """Start from the `extra_args` of a request that asks for sums."""
        start = int(extra_args[START])
        return cls(start, tuple(extra_args.get(ALTERNATIVES) or ()), start)

    def claim(self, computed: range, n_prompt: int) -> range:
        """Return the rows among `computed` that are to be summed now, each at most once.

        A request that was preempted half-way computes some rows again.
        """
        first = max(computed.start, self.next_row)
        stop = min(computed.stop, n_prompt - 1)
        if first >= stop:
            return range(0)
        self.next_row = stop
        return range(first, stop)

    def add(self, sums: torch.Tensor) -> None:
        """Take in the sums of the rows claimed in one step."""
        self.sums = sums if self.sums is None else self.sums + sums

    def reply(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return token ids, values and ranks in the shape that `read` recognises.

        It takes few kernels, for there is one a request and step.
        """
        import torch

        sums = self.sums
        if sums is None:
            sums = torch.zeros(4, dtype=torch.float64, device=device)
        values = sums.view(2, 2)
        if self.first is not None:
            values = torch.cat([values, self.first])
        n = len(values)
        marks = torch.full((3 * n,), MARK, dtype=torch.int64, device=device)
        return marks[: 2 * n].view(n, 2), values, marks[2 * n :]


@dataclass(slots=True)
class Step:
    """What one step of the engine computes for all requests that ask for sums."""

    tallies: list[Tally] = field(default_factory=list)
    rows: list[range] = field(default_factory=list)  # positions in the prompt
    offsets: list[int] = field(default_factory=list)  # of position 0 in the hidden states

    def add(self, tally: Tally, computed: range, n_prompt: int, offset: int) -> range:
        """Register what a request computed in this step; return the rows claimed of it."""
        rows = tally.claim(computed, n_prompt)
        if rows:
            self.tallies.append(tally)
            self.rows.append(rows)
            self.offsets.append(offset - computed.start)
        return rows

    def run(
        self,
        compute_logits: Callable[[torch.Tensor], torch.Tensor | None],
        hidden_states: torch.Tensor,
        targets: torch.Tensor,
    ) -> None:
        """Compute the claimed rows and add them to the tallies."""
        import torch

        if not self.rows:
            return
        device = hidden_states.device
        lengths = [len(rows) for rows in self.rows]
        index = np.concatenate(
            [
                np.arange(r.start + o, r.stop + o)
                for r, o in zip(self.rows, self.offsets, strict=True)
            ]
        )
        first_rows = np.cumsum([0, *lengths[:-1]])
        asking = [
            (tally, row)
            for tally, rows, row in zip(self.tallies, self.rows, first_rows, strict=True)
            if tally.alternatives and rows.start == tally.start
        ]
        other_rows = np.concatenate(
            [np.full(len(tally.alternatives), row) for tally, row in asking] or [np.zeros(0, int)]
        )
        other_ids = [token for tally, _ in asking for token in tally.alternatives]
        scored, others = _score(
            compute_logits,
            hidden_states[torch.from_numpy(index).to(device)],
            targets,
            other_rows,
            torch.tensor(other_ids, dtype=torch.int64, device=device),
        )
        if scored is None:  # this rank has no logits; the one that has replies
            return
        sums = torch.segment_reduce(
            scored, "sum", lengths=torch.tensor(lengths, device=device), axis=0, unsafe=True
        )
        for tally, row in zip(self.tallies, sums, strict=True):
            tally.add(row)
        parts = others.split([len(tally.alternatives) for tally, _ in asking])
        for (tally, _), part in zip(asking, parts, strict=True):
            tally.first = part


def _score(
    compute_logits: Callable[[torch.Tensor], torch.Tensor | None],
    hidden_states: torch.Tensor,
    targets: torch.Tensor,
    other_rows: np.ndarray[Any, Any],
    other_ids: torch.Tensor,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Score rows in bounded pieces.

    `other_ids[j]` is a further token for row `other_rows[j]`, which do not decrease.

    Returns:
        (n_rows, 4) float64: log-probability, entropy, 1, greedy; None without logits. And for the
        others (n, 2) float64: log-probability, greedy.
    """
    import torch

    n_rows = ROWS.get(hidden_states.device.type, ROWS_ON_ACCELERATOR)
    scored, others = [], [torch.zeros((0, 2), dtype=torch.float64, device=hidden_states.device)]
    for begin in range(0, len(targets), n_rows):
        logits = compute_logits(hidden_states[begin : begin + n_rows])
        if logits is None:  # every rank makes every call, for it may gather
            continue
        distribution = Distribution.of(logits)
        scored.append(distribution.score(targets[begin : begin + n_rows]))
        low, high = np.searchsorted(other_rows, [begin, begin + n_rows])
        if low < high:
            rows = torch.from_numpy(other_rows[low:high] - begin).to(logits.device)
            others.append(distribution.at(rows, other_ids[low:high]))
    return (torch.cat(scored) if scored else None), torch.cat(others)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The next-token distributions of n rows, over the full vocabulary, in float32.

    With x shifted by the row's maximum, log Z = log sum exp x and H = log Z - sum(x exp x) / Z;
    no log-softmax is formed, which is both cheaper and more exact.
    """

    shifted: torch.Tensor  # (n, vocabulary)
    log_z: torch.Tensor  # (n,)
    entropy_nats: torch.Tensor  # (n,)
    has_single_top: torch.Tensor  # (n,) bool

    @classmethod
    def of(cls, logits: torch.Tensor) -> Distribution:
        """Form the distributions of rows of logits."""
        n = len(logits)
        x = logits.float()
        if n == 1:
            x = x.repeat(2, 1)  # torch splits the sum of a single row over threads: other rounding
        x = x - x.amax(dim=-1, keepdim=True)
        p = x.exp()
        z = p.sum(dim=-1)
        weighted = _weighted(p, x)
        log_z = z.log()
        entropy = log_z - weighted / z
        return cls(x[:n], log_z[:n], entropy[:n], ((x == 0).sum(dim=-1) == 1)[:n])

    def score(self, targets: torch.Tensor) -> torch.Tensor:
        """Return (n, 4) float64: log-probability of the target, entropy, 1, whether the top."""
        import torch

        x = self.shifted.gather(1, targets[:, None])[:, 0]
        is_greedy = (x == 0) & self.has_single_top
        columns = (x - self.log_z, self.entropy_nats, torch.ones_like(x), is_greedy)
        return torch.stack([_on_grid(column) for column in columns], dim=1)

    def at(self, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return (m, 2) float64: log-probability of `tokens[j]` in `rows[j]`, whether the top."""
        import torch

        x = self.shifted[rows, tokens]
        is_greedy = (x == 0) & self.has_single_top[rows]
        return torch.stack([_on_grid(x - self.log_z[rows]), _on_grid(is_greedy)], dim=1)


def _weighted(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return sum(x exp x) of each row; `p`, which is exp x, is lost.

    An entry of the vocabulary that is masked with -inf has p = 0 and must contribute 0, not nan.
    Masks are rare, and passing over them costs a tenth of all where memory is slow.
    """
    if x.is_cpu:
        weighted = p.mul_(x).sum(dim=-1)
        if not weighted.isnan().any():
            return weighted
        p = x.exp()
    return p.mul_(x.clamp(min=-1e30)).sum(dim=-1)


def _on_grid(values: torch.Tensor) -> torch.Tensor:
    """Return values as float64, rounded so that sums of them are exact in any order."""
    return (values.double() / GRID).round() * GRID
