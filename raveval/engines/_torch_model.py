"""Loads a causal language model with transformers and measures sequences: the float32 reference.

Logits exist only for the rows that are scored, a slice of them at a time, so memory is bounded by
`_ROWS_AT_ONCE` rows of the vocabulary whatever the length of a document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from raveval import adapters
from raveval.engines import _torch_adapter
from raveval.engines._encoding import Sequence, Span
from raveval.errors import ModelError
from raveval.types import ModelRef

_ROWS_AT_ONCE = 256
_BATCH_TOKENS = 16_384  # most tokens of a padded batch, whatever its rows
# Below this a probability is 0 in float64 too; it keeps 0 * log 0 out of the entropy.
_LEAST_LOGIT = -1e4


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A loaded model.

    Attributes:
        whole: the model; `trunk` and `head` are its two parts, or None where the logits are not
            simply `head(trunk(ids))` (some models scale or cap them).
        end_ids: tokens that end a generated text.
    """

    whole: Any
    trunk: Any | None
    head: Any | None
    device: str
    end_ids: frozenset[int]

    @property
    def dtype(self) -> str:
        """Name of the type of the weights."""
        return str(self.whole.dtype).removeprefix("torch.")


def load(model: ModelRef, *, end_id: int | None, trust_remote_code: bool) -> TorchModel:
    """Load the weights: on the GPU where there is one, else on the CPU.

    Raises:
        ModelError: the weights cannot be read, or do not fill the model; or its adapter is another
            model's.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = "float32" if model.dtype == "auto" and device == "cpu" else model.dtype
    try:
        with no_progress_bars():
            whole, loading = AutoModelForCausalLM.from_pretrained(
                model.name,
                revision=model.revision,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
            whole.to(device)
    except Exception as exc:  # the readers of weights raise errors of their own, rooted here
        reason = " ".join(str(exc).split())[:500]
        raise ModelError(f"model {model.name!r}: its weights cannot be loaded: {reason}") from exc
    # transformers fills such weights with random numbers and only warns.
    absent = sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]]))
    if absent:
        raise ModelError(
            f"model {model.name!r}: the checkpoint lacks {len(absent)} weights that its "
            f"configuration asks for (or has them in another shape): {', '.join(absent[:3])}. Is "
            f"the checkpoint complete, and is config.json its own?"
        )
    whole.eval().requires_grad_(False)
    if model.adapter is not None:
        _torch_adapter.apply(adapters.fetched(model.adapter), whole)
    trunk, head = _parts(whole)
    stated = whole.generation_config.eos_token_id if whole.generation_config else None
    ends = [*(stated if isinstance(stated, list) else [stated]), end_id]
    return TorchModel(whole, trunk, head, device, frozenset(end for end in ends if end is not None))


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep the bars of transformers off the terminal, which shows one line of progress for all."""
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def score(model: TorchModel, sequences: tuple[Sequence, ...], *, batch_size: int) -> list[Span]:
    """Measure each sequence, in the order given."""
    # The last token is never an input, so sequences that differ only there share one forward pass.
    wanted: dict[tuple[int, ...], list[int]] = {}
    for index, sequence in enumerate(sequences):
        wanted.setdefault(sequence.token_ids[:-1], []).append(index)
    spans: dict[int, Span] = {}
    for batch in _batches(wanted, batch_size if model.trunk is not None else 1):
        for ids, rows in zip(batch, _trunk_rows(model, batch), strict=True):
            for index in wanted[ids]:
                spans[index] = _span(model, rows, sequences[index])
    return [spans[index] for index in range(len(sequences))]


def _parts(whole: Any) -> tuple[Any, Any] | tuple[None, None]:
    """Return trunk and head where together they give the model's own logits."""
    trunk, head = whole.base_model, whole.get_output_embeddings()
    if trunk is whole or head is None:
        return None, None
    vocabulary = whole.get_input_embeddings().weight.shape[0]
    ids = torch.arange(0, vocabulary, max(vocabulary // 16, 1), device=whole.device)[None]
    with torch.inference_mode():
        expected = whole(input_ids=ids, use_cache=False).logits.float()
        found = head(trunk(input_ids=ids, use_cache=False).last_hidden_state).float()
    if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        return trunk, head
    return None, None


def _batches(
    inputs: dict[tuple[int, ...], list[int]], batch_size: int
) -> Iterator[list[tuple[int, ...]]]:
    """Group inputs of like length; the longest come first, so that lack of memory shows at once."""
    waiting = sorted(inputs, key=len, reverse=True)
    while waiting:
        n_rows = max(1, min(batch_size, _BATCH_TOKENS // len(waiting[0])))
        yield waiting[:n_rows]
        waiting = waiting[n_rows:]


def _trunk_rows(model: TorchModel, batch: list[tuple[int, ...]]) -> list[Any]:
    """Return for each input the hidden states of its positions (its logits where no trunk is).

    Padding is on the right: a causal model's real positions never see it.
    """
    longest = len(batch[0])
    ids = torch.zeros((len(batch), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    network = model.whole if model.trunk is None else model.trunk
    with torch.inference_mode():
        output = network(
            input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False
        )
    states = output.logits if model.trunk is None else output.last_hidden_state
    return [states[row, : len(tokens)] for row, tokens in enumerate(batch)]


def _span(model: TorchModel, rows: Any, sequence: Sequence) -> Span:
    """Sum over the scored tokens; each is predicted by the row before it."""
    rows = rows[len(rows) - sequence.n_scored :]
    targets = torch.tensor(sequence.token_ids[-sequence.n_scored :], device=model.device)
    logprobs: list[float] = []
    entropies: list[float] = []
    is_greedy = True
    with torch.inference_mode():
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            logits = (part if model.head is None else model.head(part)).float()
            measured = measure(logits, targets[start : start + _ROWS_AT_ONCE])
            logprobs += measured.logprob_nats.tolist()
            entropies += measured.entropy_nats.tolist()
            is_greedy = is_greedy and bool(measured.is_greedy.all())
    return Span(math.fsum(logprobs), is_greedy, math.fsum(entropies))


@dataclass(frozen=True, slots=True)
class Measured:
    """Columns over rows of logits; shape `(n_rows,)`."""

    logprob_nats: Any
    entropy_nats: Any
    is_greedy: Any


def measure(logits: Any, targets: Any) -> Measured:
    """Measure float32 logits of shape `(n_rows, n_vocabulary)` against one target a row.

    With x = logit - max and Z = sum e^x: log p = x_target - log Z, and the entropy is
    log Z - (sum e^x x) / Z, which loses fewer digits in float32 than sum p log p over log-softmax.
    A token is greedy where it is the only one with the largest logit.
    """
    x = logits - logits.max(dim=-1, keepdim=True).values
    at_target = x.gather(-1, targets[:, None]).squeeze(-1)
    is_greedy = (at_target == 0) & ((x == 0).sum(dim=-1) == 1)
    x = x.clamp_min_(_LEAST_LOGIT)
    weights = x.exp()
    total = weights.sum(dim=-1)
    log_total = total.log()
    entropy = log_total - weights.mul_(x).sum(dim=-1) / total
    return Measured(at_target - log_total, entropy, is_greedy)
