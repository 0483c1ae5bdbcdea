"""Scores token sequences on a running vLLM: shared contexts once, and never a wrong cached row.

With the hook (`_vllm_hook`) sums and entropies are formed in vLLM's workers, and the first token of
all continuations of one context is scored in one request. Without it, vLLM's own log-probabilities
of the prompt are read and summed here, and there is no entropy.

A prefix cache holds no logits: positions that it covers cannot be scored. A reply is used only if
all its scored positions were computed; where they were not (an exact repeat, a context that ends
with a cache block) the request is sent again without reading the cache.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from typing import Any

from raveval.engines import _vllm_sums
from raveval.engines._encoding import Sequence, Span
from raveval.engines._vllm_backends import Backend, RequestFailed
from raveval.engines._vllm_sums import Sums

KNOWN_SPANS = 16384
CHECK_TOKENS = 31
CHECK_NATS = 1e-2  # a token; two ways through the same logits differ by far less, even in bfloat16


class Scorer:
    """Measures spans; `has_hook` says whether with sums in the workers."""

    def __init__(
        self, backend: Backend, *, has_hook: bool, block_tokens: int, prefix_reuse: bool
    ) -> None:
        self._backend = backend
        self.has_hook = has_hook
        self._block_tokens = block_tokens
        self._prefix_reuse = prefix_reuse
        self._known: OrderedDict[Sequence, Span] = OrderedDict()
        self._under_way: dict[Sequence, asyncio.Task[Span]] = {}

    async def continuations(self, rows: tuple[Sequence, ...]) -> tuple[Span, ...]:
        """Measure continuations, whose contexts are shared where they are the same.

        Identical ones are measured once. There is no entropy where a context is shared.

        Raises:
            RequestFailed: vLLM does not do one of them.
            EngineDied: the engine is gone.
        """
        contexts: dict[tuple[int, ...], list[Sequence]] = {}
        for row in dict.fromkeys(rows):
            context = row.token_ids[: len(row.token_ids) - row.n_scored]
            contexts.setdefault(context, []).append(row)
        groups = await asyncio.gather(*(self._group(group) for group in contexts.values()))
        measured = {row: span for group in groups for row, span in group.items()}
        return tuple(measured[row] for row in rows)

    async def windows(self, rows: tuple[Sequence, ...]) -> tuple[Span, ...]:
        """Measure the windows of a document, each by itself.

        Raises:
            RequestFailed: vLLM does not do one of them.
            EngineDied: the engine is gone.
        """
        return tuple(await asyncio.gather(*(self._alone(row) for row in rows)))

    async def recurring(self, rows: tuple[Sequence, ...]) -> tuple[Span, ...]:
        """Measure sequences that come again and again: choices without their question.

        Those under way are waited for, and the last ones are kept.

        Raises:
            RequestFailed: vLLM does not do one of them.
            EngineDied: the engine is gone.
        """
        return tuple(await asyncio.gather(*(self._recurring(row) for row in rows)))

    async def _recurring(self, row: Sequence) -> Span:
        if span := self._known.get(row):
            self._known.move_to_end(row)
            return span
        task = self._under_way.get(row)
        if task is None:
            task = self._under_way[row] = asyncio.ensure_future(self._alone(row))
            task.add_done_callback(lambda done: self._keep(row, done))
        return await asyncio.shield(task)  # others may wait for it too

    def _keep(self, row: Sequence, task: asyncio.Task[Span]) -> None:
        del self._under_way[row]
        if not task.cancelled() and task.exception() is None:
            self._known[row] = task.result()
            if len(self._known) > KNOWN_SPANS:
                self._known.popitem(last=False)

    async def _alone(self, row: Sequence) -> Span:
        if not self.has_hook:
            return await self._plain(row)
        start = len(row.token_ids) - row.n_scored - 1
        return _span(await self._sums(row.token_ids, start), row.n_scored)

    async def _group(self, rows: list[Sequence]) -> dict[Sequence, Span]:
        """Measure different continuations of one context."""
        if not self.has_hook or len(rows) == 1:
            return dict(zip(rows, await self.windows(tuple(rows)), strict=True))
        n_context = len(rows[0].token_ids) - rows[0].n_scored
        lead = max(rows, key=lambda row: row.n_scored)
        others = [row for row in rows if row is not lead]
        firsts = tuple(row.token_ids[n_context] for row in others)
        whole, *rests = await asyncio.gather(
            self._sums(lead.token_ids, n_context - 1, firsts),
            *(self._sums(row.token_ids, n_context) for row in others if row.n_scored > 1),
        )
        spans = {lead: _span(whole, lead.n_scored)}
        remaining = iter(rests)
        for row, (logprob, is_greedy) in zip(others, whole.alternatives, strict=True):
            rest = next(remaining) if row.n_scored > 1 else Sums(0, 0, 0.0, 0.0)
            is_rest_greedy = rest.n_greedy == rest.n_rows
            spans[row] = Span(logprob + rest.logprob_nats, is_greedy and is_rest_greedy, None)
        return spans

    async def _sums(
        self, token_ids: tuple[int, ...], start: int, alternatives: tuple[int, ...] = ()
    ) -> Sums:
        """Sum over the positions from `start` on, every one of them."""
        n_rows = len(token_ids) - 1 - start
        extra_args = _vllm_sums.ask(start, alternatives)
        for reads_cache in self._attempts(start):
            params = _params(reads_cache=reads_cache, prompt_logprobs=1, extra_args=extra_args)
            output = await asyncio.wrap_future(self._backend.submit(token_ids, params))
            sums = _vllm_sums.read(output.prompt_logprobs)
            assert sums is not None, "the hook was in place when the engine started"
            if sums.n_rows == n_rows and len(sums.alternatives) == len(alternatives):
                return sums
        raise RequestFailed(f"vLLM did not compute all of the {n_rows} positions to score")

    async def _plain(self, row: Sequence) -> Span:
        """Sum vLLM's own log-probabilities of the prompt."""
        n_tokens, k = len(row.token_ids), row.n_scored
        for reads_cache in self._attempts(n_tokens - k - 1):
            params = _params(reads_cache=reads_cache, prompt_logprobs=0)
            output = await asyncio.wrap_future(self._backend.submit(row.token_ids, params))
            if (output.num_cached_tokens or 0) <= n_tokens - k - 1:
                return _plain_span(output.prompt_logprobs, k)
        raise RequestFailed("vLLM read its prefix cache where it was told not to")

    def _attempts(self, start: int) -> tuple[bool, ...]:
        """Say whether to read the prefix cache, first and if that lost a scored position."""
        is_worth_it = self._prefix_reuse and start >= self._block_tokens
        return (True, False) if is_worth_it else (False,)


def _params(
    *, reads_cache: bool, prompt_logprobs: int, extra_args: dict[str, Any] | None = None
) -> Any:
    """Return the parameters of a scoring request, made in one go.

    vLLM decides in the constructor whether the prefix cache is read, from what it is given there.
    One token must be generated, whatever is asked.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=prompt_logprobs,
        flat_logprobs=True,
        detokenize=False,  # rows that a cache swallowed hold arbitrary token ids
        skip_reading_prefix_cache=not reads_cache,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=extra_args,
    )


def _span(sums: Sums, n_scored: int) -> Span:
    assert sums.n_rows == n_scored
    return Span(sums.logprob_nats, sums.n_greedy == n_scored, sums.entropy_nats)


def _plain_span(logprobs: Any, n_scored: int) -> Span:
    """Sum the last rows; one that a cache swallowed can only be in front of them."""
    places = logprobs.start_indices[-n_scored:]
    return Span(
        math.fsum(logprobs.logprobs[i] for i in places),
        all(logprobs.ranks[i] == 1 for i in places),  # ties push the rank of both beyond 1
        None,
    )


def check(backend: Backend, *, n_vocabulary: int, max_model_len: int) -> str | None:
    """Compare the hook with vLLM's own numbers on a short prompt; return what is wrong, if any."""
    n_tokens = min(CHECK_TOKENS, max_model_len - 1)
    token_ids = tuple((11 + 7 * i) % n_vocabulary for i in range(n_tokens))
    k = n_tokens - 1
    hooked = backend.submit(
        token_ids, _params(reads_cache=False, prompt_logprobs=1, extra_args=_vllm_sums.ask(0))
    )
    plain = backend.submit(token_ids, _params(reads_cache=False, prompt_logprobs=0))
    sums = _vllm_sums.read(hooked.result().prompt_logprobs)
    if sums is None:
        return "vLLM's own log-probabilities came back"
    if sums.n_rows != k:
        return f"{sums.n_rows} positions came back, not {k}"
    expected = _plain_span(plain.result().prompt_logprobs, k).logprob_nats
    if not abs(sums.logprob_nats - expected) <= CHECK_NATS * k:
        return f"the log-likelihood is {sums.logprob_nats:.4f}, vLLM says {expected:.4f}"
    if not 0 <= sums.entropy_nats <= math.log(n_vocabulary) * k * (1 + 1e-6):
        return f"the entropy is {sums.entropy_nats:.4f} nats over {k} tokens"
    return None
