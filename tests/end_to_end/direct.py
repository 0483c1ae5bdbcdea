"""The model itself, one row at a time: no padding, no batch, no cache; the oracle of the engines.

The network runs in float32, and its logits become a float64 log-softmax; only at the positions that
are asked for, because over all positions of a few-shot prompt that is most of the work.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass(frozen=True)
class Measured:
    """Columns over scored tokens: `margin` is the distance of the two most probable tokens."""

    logprob: torch.Tensor
    entropy: torch.Tensor
    is_top: torch.Tensor
    margin: torch.Tensor


@dataclass(frozen=True)
class Direct:
    """A loaded model and its tokenizer."""

    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, checkpoint: Path) -> "Direct":
        loaded = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        return cls(loaded.eval(), AutoTokenizer.from_pretrained(checkpoint))

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def rows(self, ids: list[int], n: int) -> torch.Tensor:
        """Return the log-softmax at the last n positions, shape `(n, n_vocabulary)`."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids]), use_cache=False, logits_to_keep=n).logits[0]
            assert len(logits) == n
            return torch.log_softmax(logits.double(), dim=-1)

    def score(self, ids: list[int], n_scored: int) -> Measured:
        """Measure the last tokens, each against the row before it."""
        rows = self.rows(ids, n_scored + 1)[:-1]
        targets = torch.tensor(ids[-n_scored:])
        top = rows.topk(2, dim=-1)
        return Measured(
            rows[range(n_scored), targets],
            -(rows.exp() * rows).sum(dim=-1),
            top.indices[:, 0] == targets,
            top.values[:, 0] - top.values[:, 1],
        )
