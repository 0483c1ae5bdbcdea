"""vLLM alone, through its own front door: what `engine_speed` compares our worker with."""

from __future__ import annotations

import os
from typing import Any, Literal

from raveval.engines import _vllm_start
from tests.bench.engine_sides import Asked, Spent, spent


class Raw:
    """vLLM's `LLM`, given all prompts at once, as token ids."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        """Load the model with the settings of the other side, in this process as it does."""
        n_threads = _vllm_start.n_threads()
        os.environ |= {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": str(n_threads),
        }
        import torch
        from vllm import LLM

        torch.set_num_threads(n_threads)
        self._llm = LLM(model, seed=0, disable_log_stats=True, **settings)

    def run(self, prompts: list[Asked], scoring: Literal["logprobs", "prefill"]) -> Spent:
        """Do all prompts from an empty prefix cache.

        Args:
            prompts: with a sampling they are gone on with, the others are scored.
            scoring: "logprobs" has vLLM return those of the prompt; "prefill" only has it read the
                prompt, which says nothing about the text: what scoring cannot be faster than.
        """
        from vllm import SamplingParams

        assert self._llm.reset_prefix_cache()
        inputs = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
        params = [
            SamplingParams(
                max_tokens=1,
                temperature=0.0,
                prompt_logprobs=0 if scoring == "logprobs" else None,
                skip_reading_prefix_cache=False,
                flat_logprobs=True,
                detokenize=False,
            )
            if prompt.sampling is None
            else SamplingParams(
                max_tokens=prompt.sampling.max_output_tokens,
                temperature=prompt.sampling.temperature,
                top_p=prompt.sampling.top_p,
                repetition_penalty=prompt.sampling.repetition_penalty,
                stop=list(prompt.sampling.stop),
            )
            for prompt in prompts
        ]
        return spent(lambda: self._llm.generate(inputs, params, use_tqdm=False))
