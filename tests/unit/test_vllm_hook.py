"""The sums that vLLM's workers form, against a float64 log-softmax, on model runners made of one
linear layer: chunked prompts, rows that a cache swallowed, preemption, several requests at once.
"""

import math
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raveval.engines import _vllm_hook, _vllm_sums
from raveval.engines._vllm_lora import leftover_changes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model  # importing vLLM takes many seconds

VOCABULARY, WIDTH = 211, 16
NATS = 1e-5  # a value: float32 has steps of 2e-6 between 16 and 32, and logits vary by one


@pytest.fixture(scope="module")
def outputs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("vllm.v1.outputs")


@pytest.fixture(scope="module")
def worker_class(outputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker
    return PromptLogprobsWorker


@dataclass
class Prompt:
    """A request, and the hidden states that a model would give its positions."""

    name: str
    token_ids: list[int]
    start: int
    alternatives: list[int] = field(default_factory=list)
    prompt_logprobs: int = 1
    is_ours: bool = True

    def __post_init__(self):
        generator = torch.Generator().manual_seed(sum(self.token_ids) + len(self.token_ids))
        self.hidden = torch.randn(len(self.token_ids), WIDTH, generator=generator)

    @property
    def params(self):
        extra = _vllm_sums.ask(self.start, self.alternatives) if self.is_ours else None
        return SimpleNamespace(
            extra_args=extra,
            prompt_logprobs=self.prompt_logprobs,
            prompt_logprob_token_ids=None,
            prompt_logprob_start=None,
        )


HEAD = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(7)) * 0.7


def logits(hidden):
    return hidden @ HEAD.T


def expected(prompt, rows):
    """Sums over rows, one at a time in float64, of the same float32 logits."""
    log_prob, entropy, n_greedy = [], [], 0
    for row in rows:
        p = torch.log_softmax(logits(prompt.hidden[row : row + 1])[0].double(), dim=0)
        target = prompt.token_ids[row + 1]
        log_prob.append(float(p[target]))
        entropy.append(float(-(p.exp() * p).sum()))
        n_greedy += int(p.argmax()) == target
    return math.fsum(log_prob), math.fsum(entropy), n_greedy


def check(sums, prompt, rows):
    log_prob, entropy, n_greedy = expected(prompt, rows)
    assert (sums.n_rows, sums.n_greedy) == (len(rows), n_greedy)
    assert sums.logprob_nats == pytest.approx(log_prob, abs=NATS * max(len(rows), 1))
    assert sums.entropy_nats == pytest.approx(entropy, abs=NATS * max(len(rows), 1))
    if prompt.start in rows:
        p = torch.log_softmax(logits(prompt.hidden[prompt.start : prompt.start + 1])[0].double(), 0)
        assert [v for v, _ in sums.alternatives] == pytest.approx(
            [float(p[token]) for token in prompt.alternatives], abs=NATS
        )
        top = int(p.argmax())
        assert [g for _, g in sums.alternatives] == [t == top for t in prompt.alternatives]
    else:
        assert sums.alternatives == ()


def received(tensors):
    """Pass a worker's reply through vLLM's own flat log-probabilities, as its engine does."""
    from vllm.logprobs import append_logprobs_for_next_position, create_prompt_logprobs

    flat = create_prompt_logprobs(flat_logprobs=True)
    ids, values, ranks = (t.tolist() for t in tensors[:3])
    for i, v, rank in zip(ids, values, ranks, strict=True):
        append_logprobs_for_next_position(flat, i, v, [None] * len(i), rank, 1)
    return flat


class RunnerV1:
    """The part of vLLM's first model runner that the hook touches."""

    def __init__(self, prompts):
        self.prompts = {p.name: p for p in prompts}
        self.requests = {
            p.name: SimpleNamespace(
                prompt_token_ids=p.token_ids, sampling_params=p.params, num_computed_tokens=0
            )
            for p in prompts
        }
        self.num_prompt_logprobs = {p.name: p.prompt_logprobs for p in prompts}
        self.input_batch = SimpleNamespace(req_id_to_index={})
        self.query_start_loc = SimpleNamespace(np=np.zeros(1, int))
        self.model = SimpleNamespace(compute_logits=logits)
        self.seen_by_vllm = []

    def _get_prompt_logprobs_dict(self, hidden_states, num_scheduled_tokens):
        self.seen_by_vllm.append(dict(self.num_prompt_logprobs))
        done = [
            name
            for name in self.num_prompt_logprobs
            if self.requests[name].num_computed_tokens + num_scheduled_tokens.get(name, 0)
            >= len(self.requests[name].prompt_token_ids)
        ]
        for name in done:
            del self.num_prompt_logprobs[name]
        return dict.fromkeys(done, "vllm's")

    def step(self, scheduled):
        """Compute the given number of tokens of each request, in that order."""
        self.input_batch.req_id_to_index = {name: i for i, name in enumerate(scheduled)}
        self.query_start_loc.np = np.cumsum([0, *scheduled.values()])
        parts = []
        for name, n in scheduled.items():
            done = self.requests[name].num_computed_tokens
            parts.append(self.prompts[name].hidden[done : done + n])
        out = self._get_prompt_logprobs_dict(torch.cat(parts), scheduled)
        for name, n in scheduled.items():
            self.requests[name].num_computed_tokens += n
        return out


class RunnerV2:
    """The part of vLLM's second model runner that the hook touches, around its own worker."""

    def __init__(self, prompts, worker_class):
        self.prompts = {p.name: p for p in prompts}
        self.prompt_logprobs_worker = worker_class(len(prompts) + 2, torch.device("cpu"))
        self.slots = {p.name: len(prompts) - i for i, p in enumerate(prompts)}  # any order
        self.done = dict.fromkeys(self.slots, 0)
        self.prompt_lens = np.zeros(len(prompts) + 2, int)
        self.tokens = torch.zeros((len(prompts) + 2, 400), dtype=torch.int32)
        for p in prompts:
            self.prompt_lens[self.slots[p.name]] = len(p.token_ids)
            self.tokens[self.slots[p.name], : len(p.token_ids)] = torch.tensor(p.token_ids)

    def add(self):
        for name, prompt in self.prompts.items():
            self.prompt_logprobs_worker.add_request(name, self.slots[name], prompt.params)

    def step(self, scheduled):
        slots = np.array([self.slots[name] for name in scheduled])
        counts = np.array(list(scheduled.values()))
        done = np.array([self.done[name] for name in scheduled])
        batch = SimpleNamespace(
            req_ids=list(scheduled),
            idx_mapping_np=slots,
            num_computed_prefill_tokens_np=done,
            num_scheduled_tokens=counts,
            query_start_loc_np=np.cumsum([0, *counts]),
            prefill_len_np=self.prompt_lens[slots],
        )
        hidden = torch.cat(
            [
                self.prompts[n].hidden[d : d + c]
                for n, d, c in zip(scheduled, done, counts, strict=True)
            ]
        )
        out = self.prompt_logprobs_worker.compute_prompt_logprobs(
            logits, hidden, batch, self.tokens, torch.tensor(done), self.prompt_lens
        )
        for name, n in scheduled.items():
            self.done[name] += n
        return out


def random_prompts(rng, n):
    prompts = []
    for i in range(n):
        length = int(rng.integers(2, 300))
        ids = rng.integers(0, VOCABULARY, length).tolist()
        start = int(rng.integers(0, length - 1))
        others = rng.integers(0, VOCABULARY, int(rng.integers(0, 4))).tolist()
        prompts.append(Prompt(f"r{i}", ids, start, others))
    for prompt in prompts[::2]:  # some whose target is the most probable token
        top = int(logits(prompt.hidden[prompt.start : prompt.start + 1])[0].argmax())
        prompt.token_ids[prompt.start + 1] = top
        prompt.alternatives.append(top)
    return prompts


def runner_of(kind, prompts, worker_class):
    runner: Any = RunnerV1(prompts) if kind == "v1" else RunnerV2(prompts, worker_class)
    assert _vllm_hook.install(runner) == kind
    if kind == "v2":
        runner.add()
    return runner


@pytest.mark.parametrize("kind", ["v1", "v2"])
@pytest.mark.parametrize("seed", range(8))
def test_any_chunking_gives_the_sums(kind, seed, worker_class):
    rng = np.random.default_rng(seed)
    prompts = random_prompts(rng, 6)
    runner = runner_of(kind, prompts, worker_class)
    left = {p.name: len(p.token_ids) for p in prompts}
    replies: dict[str, Any] = {}
    while left:
        names = [n for n in left if rng.random() < 0.7] or list(left)
        rng.shuffle(names)
        scheduled = {n: int(rng.integers(1, left[n] + 1)) for n in names}
        replies |= runner.step(scheduled)
        for name, n in scheduled.items():
            left[name] -= n
            if not left[name]:
                del left[name]
    for prompt in prompts:
        sums = _vllm_sums.read(received(replies[prompt.name]))
        check(sums, prompt, range(prompt.start, len(prompt.token_ids) - 1))


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_rows_that_a_cache_holds_are_missing_from_the_count(kind, worker_class):
    prompts = [Prompt("a", list(range(40)), 20, [3]), Prompt("b", list(range(50, 90)), 36, [3])]
    runner = runner_of(kind, prompts, worker_class)
    n_cached = 32
    if kind == "v1":
        for request in runner.requests.values():
            request.num_computed_tokens = n_cached
    else:
        runner.done = dict.fromkeys(runner.done, n_cached)
    replies = runner.step({"a": 8, "b": 8})
    check(_vllm_sums.read(received(replies["a"])), prompts[0], range(32, 39))
    check(_vllm_sums.read(received(replies["b"])), prompts[1], range(36, 39))


def test_rows_computed_again_after_a_preemption_count_once(outputs):
    prompt, other = Prompt("a", list(range(60)), 5, [9]), Prompt("b", list(range(9)), 5)
    runner = runner_of("v1", [prompt, other], None)
    assert runner.step({"a": 30}) == {}
    assert runner.step({"b": 4}) == {}  # preempted: not scheduled at all
    runner.requests["a"].num_computed_tokens = 0
    assert runner.step({"a": 12}) == {}
    sums = _vllm_sums.read(received(runner.step({"a": 48})["a"]))
    check(sums, prompt, range(5, 59))
    assert list(runner.num_prompt_logprobs) == ["b"]


def test_other_requests_stay_with_vllm(outputs):
    ours = Prompt("ours", list(range(30)), 3)
    theirs = Prompt("theirs", list(range(30)), 0, is_ours=False, prompt_logprobs=5)
    runner = runner_of("v1", [theirs, ours], None)
    runner.step({"theirs": 10, "ours": 10})
    out = runner.step({"ours": 20, "theirs": 20})
    assert out["theirs"] == "vllm's"
    check(_vllm_sums.read(received(out["ours"])), ours, range(3, 29))
    assert runner.seen_by_vllm == [{"theirs": 5}, {"theirs": 5}]
    assert runner.num_prompt_logprobs == {}


def test_a_request_aborted_half_way_leaves_nothing(outputs):
    prompts = [Prompt("gone", list(range(30)), 3), Prompt("here", list(range(30)), 3)]
    runner: Any = RunnerV1(prompts)
    hook = _vllm_hook.HookV1(runner)
    runner._get_prompt_logprobs_dict = hook.prompt_logprobs
    runner.step({"gone": 10, "here": 10})
    del runner.requests["gone"], runner.num_prompt_logprobs["gone"]
    check(_vllm_sums.read(received(runner.step({"here": 20})["here"])), prompts[1], range(3, 29))
    assert hook._tallies == {}


def test_vllms_own_log_probabilities_are_told_apart(outputs):
    own = SimpleNamespace(ranks=[1, 1], token_ids=[5, 5], logprobs=[-0.5, -0.5])
    assert _vllm_sums.read(own) is None
    assert _vllm_sums.read(None) is None


def test_an_unknown_runner_is_refused_with_the_reason():
    class Changed:
        def _get_prompt_logprobs_dict(self, hidden_states, num_scheduled_tokens, spec=None):
            raise NotImplementedError

    said = _vllm_hook.install(Changed())
    assert (
        "Changed: _get_prompt_logprobs_dict takes (hidden_states, num_scheduled_tokens, spec)"
        in said
    )
    assert "there is no _get_prompt_logprobs_dict" in _vllm_hook.install(SimpleNamespace())
    worker = SimpleNamespace(add_request=lambda req_id, req_idx, sampling_params: None)
    said = _vllm_hook.install(SimpleNamespace(prompt_logprobs_worker=worker))
    assert "there is no remove_request" in said


def test_distribution_is_exact_on_hard_rows():
    rows = torch.zeros(5, 1000)
    rows[1, 3] = 80.0  # all but certain
    rows[2] = torch.linspace(-400, 400, 1000)  # exponentials overflow without the shift
    rows[3, 500:] = -math.inf  # half of the vocabulary is masked
    rows[4, :2] = 30.0  # two tokens tie for the top
    targets = torch.tensor([0, 3, 999, 499, 1])
    got = _vllm_sums.Distribution.of(rows).score(targets)
    p = torch.log_softmax(rows.double(), dim=1)
    entropy = -(p.exp() * p.clamp(min=-1e300)).sum(dim=1)
    assert got[:, 0].tolist() == pytest.approx(p[range(5), targets].tolist(), abs=1e-5)
    assert got[:, 1].tolist() == pytest.approx(entropy.tolist(), abs=1e-5)
    assert got[:, 3].tolist() == [0, 1, 1, 0, 0]
    assert got[0, 1] == pytest.approx(math.log(1000), abs=1e-6)


def test_bfloat16_logits_are_summed_in_float32():
    rows = (torch.randn(70, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 5).bfloat16()
    targets = torch.arange(70)
    got = _vllm_sums.Distribution.of(rows).score(targets)
    p = torch.log_softmax(rows.double(), dim=1)
    assert (got[:, 0] - p[range(70), targets]).abs().max() < 5e-6
    assert (got[:, 1] + (p.exp() * p).sum(dim=1)).abs().max() < 5e-6


def test_a_row_rounds_alone_as_beside_others():
    rows = torch.randn(64, 49152, generator=torch.Generator().manual_seed(2)) * 3
    targets = torch.arange(64)
    together = _vllm_sums.Distribution.of(rows).score(targets)
    for i in range(64):
        alone = _vllm_sums.Distribution.of(rows[i : i + 1]).score(targets[i : i + 1])
        assert torch.equal(alone[0], together[i])


def test_sums_are_the_same_bits_however_rows_are_grouped():
    rows = torch.randn(500, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 4
    scores = _vllm_sums.Distribution.of(rows).score(torch.arange(500) % VOCABULARY)
    whole = scores.sum(dim=0)
    for cuts in ([1], [499], [64, 128, 192], list(range(1, 500))):
        parts = [part.sum(dim=0) for part in torch.tensor_split(scores.flip(0), cuts)]
        assert torch.equal(sum(parts), whole)


def test_few_rows_of_logits_are_held_at_a_time():
    prompts = [Prompt("long", [i % VOCABULARY for i in range(5000)], 0), Prompt("b", [1, 2, 3], 0)]
    asked = []

    def compute(hidden):
        asked.append(len(hidden))
        return logits(hidden)

    tallies, offset, step = [], 0, _vllm_sums.Step()
    for prompt in prompts:
        n = len(prompt.token_ids)
        tallies.append(_vllm_sums.Tally.begin(_vllm_sums.ask(prompt.start)))
        step.add(tallies[-1], range(n), n, offset)
        offset += n
    targets = torch.tensor([token for p in prompts for token in p.token_ids[1:]])
    step.run(compute, torch.cat([prompt.hidden for prompt in prompts]), targets)
    assert sum(asked) == 4999 + 2
    assert max(asked) <= 256
    sums = [tally.sums for tally in tallies if tally.sums is not None]
    assert [int(each[2]) for each in sums] == [4999, 2]


def test_linear_layers_never_see_a_single_row():
    seen = []

    def product(scale, rows, bias=0.0):
        seen.append(len(rows))
        return rows * scale + bias

    padded = _vllm_hook._padding(product)
    for n in (1, 2, 3):
        rows = torch.randn(n, WIDTH)
        assert torch.equal(padded(2.0, rows, 1.0), rows * 2 + 1)
    assert seen == [2, 2, 3]


def test_changes_of_an_adapter_that_find_no_layer_are_named():
    """Two layers take theirs, one packed of three with one of them unchanged; four do not."""

    def change(n_in, n_out):
        return SimpleNamespace(lora_a=torch.zeros(4, n_in), lora_b=torch.zeros(n_out, 4))

    def packed(*shapes):
        parts = [None if shape is None else change(*shape) for shape in shapes]
        halves = ([getattr(part, half, None) for part in parts] for half in ("lora_a", "lora_b"))
        return SimpleNamespace(**dict(zip(("lora_a", "lora_b"), halves, strict=True)))

    def layer(n_in, *n_outs):
        sizes = {"input_size": n_in, "output_size": sum(n_outs), "output_sizes": list(n_outs)}
        return SimpleNamespace(base_layer=SimpleNamespace(**sizes))

    modules = {name: layer(32, 16) for name in ("right", "narrow", "short", "unchanged")}
    modules |= {name: layer(32, 16, 8, 8) for name in ("packed", "wrongly packed")}
    modules["experts"] = SimpleNamespace(base_layer=SimpleNamespace())
    changes = {
        "right": change(32, 16),
        "narrow": change(16, 16),
        "short": change(32, 8),
        "elsewhere": change(32, 16),
        "packed": packed((32, 16), None, (32, 8)),
        "wrongly packed": packed((32, 16), None, (32, 16)),
        "experts": change(1, 1),
    }
    manager = SimpleNamespace(
        modules=modules, list_adapters=lambda: {1: SimpleNamespace(loras=changes)}
    )
    assert leftover_changes(manager) == ["elsewhere", "narrow", "short", "wrongly packed"]
