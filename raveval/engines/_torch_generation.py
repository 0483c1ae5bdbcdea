"""Generates one text at a time with transformers, so that it depends on its prompt and seed alone.

Order of the filters, as in vLLM: repetition penalty (prompt and output), temperature, top-p.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from raveval.engines._encoding import EncodedPrompt
from raveval.engines._torch_model import TorchModel
from raveval.types import Completion, Failure, Sampling, Status


def generate(
    model: TorchModel,
    prompt: EncodedPrompt,
    sampling: Sampling,
    *,
    decode: Callable[[tuple[int, ...]], str],
) -> Completion | Failure:
    """Complete a prompt until an end token, a stop string or the last allowed token.

    The end token and the tokens of a stop string count as output, but are not in the text.
    """
    source = torch.Generator()
    if sampling.seed is None:
        source.seed()
    else:
        source.manual_seed(sampling.seed % 2**63)
    step = _Steps(model, prompt.token_ids)
    output: list[int] = []
    text = ""
    while len(output) < sampling.max_output_tokens:
        logits = step.logits_after(output)
        if bool(logits.isnan().any()) or not bool(logits.isfinite().any()):
            return Failure(Status.FAILED, "the model's logits are not finite (try dtype: float32)")
        output.append(choose(logits, (*prompt.token_ids, *output), sampling, source))
        if output[-1] in model.end_ids:
            return _completion(decode(tuple(output[:-1])), "stop", prompt, output)
        if sampling.stop:
            text = decode(tuple(output))
            found = [text.find(stop) for stop in sampling.stop if stop in text]
            if found:
                return _completion(text[: min(found)], "stop", prompt, output)
    # Half a character at the very end decodes to the replacement sign; it is no text yet.
    return _completion(decode(tuple(output)).rstrip("\ufffd"), "length", prompt, output)


class _Steps:
    """Feeds a model token by token, keeping what attention needs of the earlier ones."""

    def __init__(self, model: TorchModel, prompt: tuple[int, ...]) -> None:
        self._model = model
        self._prompt = prompt
        self._cache: Any = None
        takes_keep = "logits_to_keep" in inspect.signature(model.whole.forward).parameters
        self._keep = {"logits_to_keep": 1} if takes_keep else {}

    def logits_after(self, output: list[int]) -> Any:
        """Return the float32 logits, on the CPU, of the token after prompt and output."""
        fresh = self._prompt if self._cache is None else output[-1:]
        ids = torch.tensor([list(fresh)], device=self._model.device)
        with torch.inference_mode():
            reply = self._model.whole(
                input_ids=ids, past_key_values=self._cache, use_cache=True, **self._keep
            )
        self._cache = reply.past_key_values
        return reply.logits[0, -1].float().cpu()


def choose(logits: Any, seen: tuple[int, ...], sampling: Sampling, source: Any) -> int:
    """Return the next token: the most probable one at temperature 0, else one drawn from `source`.

    Args:
        logits: float32, shape `(n_vocabulary,)`; left as they are.
        seen: tokens of prompt and output so far, which the repetition penalty is for.
        sampling: the filters.
        source: a `torch.Generator` on the CPU.
    """
    if sampling.repetition_penalty != 1.0:
        index = torch.tensor(sorted(set(seen)), dtype=torch.long)
        known = logits[index]
        penalty = sampling.repetition_penalty
        logits = logits.clone()
        logits[index] = torch.where(known > 0, known / penalty, known * penalty)
    if sampling.temperature == 0.0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.double() / sampling.temperature, dim=-1)
    ordered, order = probabilities.sort(descending=True, stable=True)
    cumulative = ordered.cumsum(0)
    # The smallest set of tokens whose probability reaches top_p: those with less than it before.
    n_kept = int((cumulative - ordered < sampling.top_p).sum()) if sampling.top_p < 1.0 else None
    mass = cumulative[:n_kept]
    point = torch.rand((), generator=source, dtype=torch.float64) * mass[-1]
    place = int(torch.searchsorted(mass, point, right=True))
    return int(order[min(place, len(mass) - 1)])


def _completion(text: str, reason: Any, prompt: EncodedPrompt, output: list[int]) -> Completion:
    return Completion(
        text=text,
        finish_reason=reason,
        n_prompt_tokens=len(prompt.token_ids),
        n_output_tokens=len(output),
        n_truncated_tokens=prompt.n_truncated_tokens,
    )
