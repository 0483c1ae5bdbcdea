"""Puts the sums of `_vllm_sums` into vLLM's model runners; all use of its private API is here.

vLLM can report the log-probability of each prompt token, but not the entropy of the distribution it
comes from, and it computes and ships every prompt position. `WorkerExtension` puts a function in
front of vLLM's own, which serves the requests that ask for sums and leaves the others to vLLM.

Two model runners are known: "v1" (CPUs, and GPUs where asked for) and "v2" (the default on GPUs).
`install` looks at what it is about to replace, and refuses anything it does not know: the engine
then does without entropies. Torch and vllm are imported inside functions only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from raveval.engines._vllm_lora import leftover_changes
from raveval.engines._vllm_sums import START, Step, Tally

if TYPE_CHECKING:
    import torch


class WorkerExtension:
    """vLLM adds this to its worker class; `raveval_install` is then called by name."""

    model_runner: Any

    def raveval_install(self) -> str:
        """Put the hook in; return "v1" or "v2", or the reason why not."""
        return install(self.model_runner)

    def raveval_pad_single_rows(self) -> int:
        """Make a step of one token round as any other does; return how many layers it took."""
        return pad_single_rows(self.model_runner.model)

    def raveval_join_stages(self) -> None:
        """Make the room in which a stage of a pipeline on CPUs gets its input."""
        join_stages(self.model_runner)

    def raveval_leftover_changes(self) -> list[str]:
        """Return the layers of the adapter that change nothing in this worker."""
        return leftover_changes(self.model_runner.lora_manager._adapter_manager)

    def raveval_withhold_generators(self) -> str | None:
        """Draw nothing for tokens that are thrown away; return why not, if so."""
        return withhold_generators(self.model_runner)


def install(runner: Any) -> str:
    """Put the hook into a model runner of a kind that is known; return its kind or why not."""
    name = f"{type(runner).__module__}.{type(runner).__qualname__}"
    if hasattr(runner, "prompt_logprobs_worker"):
        worker = runner.prompt_logprobs_worker
        if worker is None:  # an earlier stage of a pipeline: it has no logits
            return "v2"
        if problem := _mismatch(worker, _V2_METHODS):
            return f"{name}: {problem}"
        hook = HookV2(worker)
        worker.add_request = hook.add_request
        worker.remove_request = hook.remove_request
        worker.compute_prompt_logprobs = hook.compute_prompt_logprobs
        return "v2"
    if problem := _mismatch(runner, _V1_METHODS):
        return f"{name}: {problem}"
    missing = [a for a in _V1_ATTRIBUTES if not hasattr(runner, a)]
    if missing:
        return f"{name} has no {', '.join(missing)}"
    runner._get_prompt_logprobs_dict = HookV1(runner).prompt_logprobs
    return "v1"


def pad_single_rows(model: Any) -> int:
    """Let the linear layers of a model on CPUs see two rows where there is one.

    The kernels of a single row add in another order than those of several, so that a text would
    depend on whether another one was under way. Nothing is slower: one row waits for the same
    weights.
    """
    from vllm.model_executor.layers.linear import LinearBase

    layers = [module for module in model.modules() if isinstance(module, LinearBase)]
    # Not their `forward`: a layer that an adapter changes has its product formed without it.
    for method in {id(layer.quant_method): layer.quant_method for layer in layers}.values():
        method.apply = _padding(method.apply)
    return len(layers)


def _padding(apply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def padded(layer: Any, rows: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if rows.dim() != 2 or len(rows) != 1:
            return apply(layer, rows, *arguments)
        return apply(layer, rows.repeat(2, 1), *arguments)[:1]

    return padded


def join_stages(runner: Any) -> None:
    """Make the room for what one stage of a pipeline hands to the next.

    vLLM makes it in a first run of the model, and leaves that out on CPUs that compile nothing.
    """
    if getattr(runner, "intermediate_tensors", None) is None:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens,
            dtype=runner.model_config.dtype,
            device=runner.device,
        )


def withhold_generators(runner: Any) -> str | None:
    """Draw a request's random numbers for the tokens it keeps only, on CPUs; return why not, if so.

    A prompt may take several steps, by what else is under way. vLLM samples a token after each, and
    throws all but the last away. It then sets the request's generator back, which a generator on
    CPUs refuses, and the engine dies; and without that, a text would depend on its company. So
    requests whose token will be thrown away have no generator while tokens are sampled.
    """
    missing = [
        a
        for a in ("_sample", "_bookkeeping_sync", "discard_request_mask", "input_batch")
        if not hasattr(runner, a)
    ]
    if missing:
        return f"{type(runner).__qualname__} has no {', '.join(missing)}"
    sample, keep_books = runner._sample, runner._bookkeeping_sync
    withheld: dict[int, Any] = {}

    def sample_kept(*arguments: Any, **named: Any) -> Any:
        batch = runner.input_batch
        for i in np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]):
            if int(i) in batch.generators:
                withheld[int(i)] = batch.generators.pop(int(i))
        return sample(*arguments, **named)

    def keep_books_and_return(*arguments: Any, **named: Any) -> Any:
        try:
            return keep_books(*arguments, **named)
        finally:
            runner.input_batch.generators.update(withheld)
            withheld.clear()

    runner._sample, runner._bookkeeping_sync = sample_kept, keep_books_and_return
    return None


_V1_METHODS = {"_get_prompt_logprobs_dict": ("hidden_states", "num_scheduled_tokens")}
_V1_ATTRIBUTES = ("num_prompt_logprobs", "requests", "input_batch", "query_start_loc", "model")
_V2_METHODS = {
    "add_request": ("req_id", "req_idx", "sampling_params"),
    "remove_request": ("req_id",),
    "compute_prompt_logprobs": (
        "logits_fn",
        "hidden_states",
        "input_batch",
        "all_token_ids",
        "num_computed_tokens",
        "prompt_lens",
    ),
}


def _mismatch(owner: Any, methods: Mapping[str, tuple[str, ...]]) -> str | None:
    for name, expected in methods.items():
        method = getattr(owner, name, None)
        if method is None:
            return f"there is no {name}"
        found = tuple(inspect.signature(method).parameters)
        if found != expected:
            return f"{name} takes ({', '.join(found)}), not ({', '.join(expected)})"
    return None


class HookV1:
    """In front of `GPUModelRunner._get_prompt_logprobs_dict` (also the CPU's runner)."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._original = runner._get_prompt_logprobs_dict
        self._tallies: dict[str, Tally] = {}

    def prompt_logprobs(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: Mapping[str, int]
    ) -> dict[str, Any]:
        """Reply for the requests that ask for sums; vLLM does the others."""
        import torch
        from vllm.v1.outputs import LogprobsTensors

        runner = self._runner
        ours = [r for r in runner.num_prompt_logprobs if START in self._extra_args(r)]
        out = self._others(ours, hidden_states, num_scheduled_tokens)
        step, finished = Step(), []
        targets: list[int] = []
        for request_id in ours:
            n_scheduled = num_scheduled_tokens.get(request_id)
            if n_scheduled is None:  # preempted in the middle of its prompt
                continue
            request = runner.requests[request_id]
            prompt = request.prompt_token_ids
            if request_id not in self._tallies:
                self._tallies[request_id] = Tally.begin(self._extra_args(request_id))
            computed = range(request.num_computed_tokens, request.num_computed_tokens + n_scheduled)
            offset = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[request_id]])
            rows = step.add(self._tallies[request_id], computed, len(prompt), offset)
            targets += prompt[rows.start + 1 : rows.stop + 1] if rows else []
            if computed.stop >= len(prompt):
                finished.append(request_id)
        step.run(
            runner.model.compute_logits,
            hidden_states,
            torch.tensor(targets, dtype=torch.int64, device=hidden_states.device),
        )
        for request_id in finished:
            del runner.num_prompt_logprobs[request_id]
            reply = self._tallies.pop(request_id).reply(hidden_states.device)
            out[request_id] = LogprobsTensors(*(part.cpu() for part in reply))
        for request_id in [r for r in self._tallies if r not in runner.requests]:
            del self._tallies[request_id]  # aborted
        return out

    def _extra_args(self, request_id: str) -> Mapping[str, Any]:
        request = self._runner.requests.get(request_id)
        params = None if request is None else request.sampling_params
        return (params.extra_args if params else None) or {}

    def _others(
        self,
        ours: list[str],
        hidden_states: torch.Tensor,
        num_scheduled_tokens: Mapping[str, int],
    ) -> dict[str, Any]:
        """Let vLLM do the requests that are not ours, which it must not see."""
        runner = self._runner
        everything = runner.num_prompt_logprobs
        if len(ours) == len(everything):
            return {}
        mine = {request_id: everything.pop(request_id) for request_id in ours}
        try:
            out: dict[str, Any] = self._original(hidden_states, num_scheduled_tokens)
        finally:
            everything.update(mine)
        return out


class HookV2:
    """In front of three methods of V2's `PromptLogprobsWorker`, which lives on the last stage."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._add_request = worker.add_request
        self._remove_request = worker.remove_request
        self._compute = worker.compute_prompt_logprobs
        self._tallies: dict[str, Tally] = {}

    def add_request(self, req_id: str, req_idx: int, sampling_params: Any) -> None:
        """Register a request; vLLM's own code is told that ours wants no log-probabilities."""
        self._add_request(req_id, req_idx, sampling_params)
        extra_args = sampling_params.extra_args or {}
        if START in extra_args:
            self._tallies[req_id] = Tally.begin(extra_args)
            self._worker.uses_prompt_logprobs[req_idx] = False

    def remove_request(self, req_id: str) -> None:
        """Forget a request: finished, aborted, or preempted (it is then added again)."""
        self._tallies.pop(req_id, None)
        self._remove_request(req_id)

    def compute_prompt_logprobs(
        self,
        logits_fn: Callable[[torch.Tensor], torch.Tensor | None],
        hidden_states: torch.Tensor,
        input_batch: Any,
        all_token_ids: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        prompt_lens: np.ndarray[Any, Any],
    ) -> dict[str, Any]:
        """Reply for the requests that ask for sums; vLLM does the others."""
        import torch
        from vllm.v1.outputs import LogprobsTensors

        out: dict[str, Any] = self._compute(
            logits_fn, hidden_states, input_batch, all_token_ids, num_computed_tokens, prompt_lens
        )
        step, finished = Step(), []
        slots, positions = [np.zeros(0, int)], [np.zeros(0, int)]
        for i, request_id in enumerate(input_batch.req_ids):
            tally = self._tallies.get(request_id)
            if tally is None:
                continue
            slot = int(input_batch.idx_mapping_np[i])
            begin = int(input_batch.num_computed_prefill_tokens_np[i])
            computed = range(begin, begin + int(input_batch.num_scheduled_tokens[i]))
            n_prompt = int(prompt_lens[slot])
            rows = step.add(tally, computed, n_prompt, int(input_batch.query_start_loc_np[i]))
            slots.append(np.full(len(rows), slot))
            positions.append(np.arange(rows.start + 1, rows.stop + 1))
            if computed.stop >= n_prompt:
                finished.append(request_id)
        if not finished and not step.rows:
            return out
        device = hidden_states.device
        where = [torch.from_numpy(np.concatenate(part)).to(device) for part in (slots, positions)]
        step.run(logits_fn, hidden_states, all_token_ids[where[0], where[1]].to(torch.int64))
        for request_id in finished:
            out[request_id] = LogprobsTensors(*self._tallies.pop(request_id).reply(device))
        return out
