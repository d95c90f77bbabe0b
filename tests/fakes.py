"""Stand-ins shared between tests."""

from dataclasses import dataclass, field

from qwen3_a8w8.config import SCRATCH_BLOCK
from qwen3_a8w8.engine.plan import (
    RunnerCapabilities,
    SampledToken,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from qwen3_a8w8.engine.request import EngineRequest, derive_seed

EOS = 1


def make_capabilities(**changes) -> RunnerCapabilities:
    """Capabilities of a small fake runner; B16 costs as much as four B1 steps."""
    values = {
        "decode_batch_sizes": (1, 16),
        "prefill_chunk_tokens": 32,
        "max_prefill_seqs": 8,
        "block_size": 4,
        "num_kv_blocks": 65,
        "max_model_len": 128,
        "vocab_size": 1000,
        "eos_token_ids": (EOS,),
        "decode_step_s": {1: 0.010, 16: 0.040},
        "description": {"device": "fake"},
    } | changes
    return RunnerCapabilities(**values)


def chain(token_ids, parent=0) -> list[int]:
    """For each position a number that stands for all tokens up to it."""
    out = []
    for token_id in token_ids:
        parent = hash((parent, token_id))
        out.append(parent)
    return out


def next_token(state: int, position: int, seed: int, vocab_size: int) -> int:
    """The token a fake model samples at `position` after tokens whose chain value is `state`."""
    return hash((state, position, seed)) % vocab_size


def expected_outputs(request: EngineRequest, capabilities: RunnerCapabilities) -> list[list[int]]:
    """What the request's sequences give when each runs by itself; seed must be set."""
    outputs = []
    for index in range(request.sampling.n):
        sampling = request.sampling
        seed = derive_seed(sampling.seed, index)
        tokens = [*request.prompt_token_ids, *request.output_token_ids]
        num_prompt = len(request.prompt_token_ids)
        pool_tokens = (capabilities.num_kv_blocks - 1) * capabilities.block_size
        limit = min(capabilities.max_model_len, pool_tokens)
        if sampling.max_tokens is not None:
            limit = min(limit, num_prompt + sampling.max_tokens)
        stops = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= set(capabilities.eos_token_ids)
        while len(tokens) < limit:
            token = next_token(chain(tokens)[-1], len(tokens), seed, capabilities.vocab_size)
            is_barred = len(tokens) - num_prompt < sampling.min_tokens
            while is_barred and token in stops:
                token = (token + 1) % capabilities.vocab_size
            tokens.append(token)
            if token in stops:
                break
        outputs.append(tokens[num_prompt:])
    return outputs


@dataclass
class _Known:
    start: SequenceStart
    token_ids: list[int]
    states: list[int] = field(default_factory=list)


class FakeRunner:
    """Executes plans without a model and checks every word of the contract on the way.

    Its KV cache holds, per slot, what a real one would stand for: the token and everything
    before it. Each chunk and each decode row checks all earlier positions through its block
    table, so a block that was reused too early, shared wrongly or never written is found at
    once.
    """

    def __init__(self, capabilities: RunnerCapabilities | None = None) -> None:
        self.capabilities = capabilities or make_capabilities()
        self.known: dict[int, _Known] = {}
        self.plans: list[StepPlan] = []
        self.num_closed = 0
        self.fail_at_step: int | None = None
        self._cache: dict[tuple[int, int], int] = {}
        self._written: set[tuple[int, int]] = set()
        self._seen: set[int] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step."""
        assert plan.step_id == len(self.plans), "plans are executed in order, each once"
        self.plans.append(plan)
        if plan.step_id == self.fail_at_step:
            raise OSError("device lost")
        for seq_id in plan.release:
            self.known.pop(seq_id, None)
        for start in plan.start:
            assert start.seq_id not in self._seen, "a sequence is started once"
            self._seen.add(start.seq_id)
            assert start.sampling.seed is not None
            assert start.sampling.n == 1
            tokens = [*start.prompt_token_ids, *start.output_token_ids]
            self.known[start.seq_id] = _Known(start, tokens, chain(tokens))
        self._written.clear()
        self._check_shape(plan)
        sampled = []
        for chunk in plan.prefill:
            known = self.known[chunk.seq_id]
            end = chunk.start + chunk.num_tokens
            assert chunk.num_tokens >= 1
            assert end <= len(known.token_ids)
            assert chunk.is_sampled == (end == len(known.token_ids))
            self._attend(known, chunk.block_ids, chunk.start, end)
            if chunk.is_sampled:
                sampled.append(self._sample(chunk.seq_id, known))
        for row in plan.decode.rows if plan.decode else ():
            known = self.known[row.seq_id]
            assert row.position == len(known.token_ids) - 1
            self._attend(known, row.block_ids, row.position, row.position + 1)
            sampled.append(self._sample(row.seq_id, known))
        return StepResult(plan.step_id, tuple(sampled), 0.001)

    def close(self) -> None:
        """Counts its calls."""
        self.num_closed += 1

    def _check_shape(self, plan: StepPlan) -> None:
        capabilities = self.capabilities
        assert len(plan.prefill) <= capabilities.max_prefill_seqs
        num_tokens = sum(chunk.num_tokens for chunk in plan.prefill)
        assert num_tokens <= capabilities.prefill_chunk_tokens
        rows = plan.decode.rows if plan.decode else ()
        ids = [work.seq_id for work in (*plan.prefill, *rows)]
        assert len(ids) == len(set(ids)), "a sequence is in a step once"
        if plan.decode:
            assert plan.decode.batch_size in capabilities.decode_batch_sizes
            assert 1 <= len(rows) <= plan.decode.batch_size

    def _attend(self, known: _Known, block_ids: tuple[int, ...], start: int, end: int) -> None:
        size = self.capabilities.block_size
        assert len(set(block_ids)) == len(block_ids)
        assert SCRATCH_BLOCK not in block_ids
        assert all(0 < block_id < self.capabilities.num_kv_blocks for block_id in block_ids)
        assert len(block_ids) * size >= end, "the block table covers every position"
        assert end <= self.capabilities.max_model_len
        for position in range(start):
            slot = (block_ids[position // size], position % size)
            assert self._cache.get(slot) == known.states[position], (
                f"sequence {known.start.seq_id} reads a wrong token at position {position}"
            )
        for position in range(start, end):
            slot = (block_ids[position // size], position % size)
            assert slot not in self._written, "two sequences write one slot in one step"
            self._written.add(slot)
            self._cache[slot] = known.states[position]

    def _sample(self, seq_id: int, known: _Known) -> SampledToken:
        sampling = known.start.sampling
        position = len(known.token_ids)
        vocab_size = self.capabilities.vocab_size
        token = next_token(known.states[-1], position, sampling.seed, vocab_size)
        num_output = position - len(known.start.prompt_token_ids)
        while num_output < sampling.min_tokens and token in known.start.stop_token_ids:
            token = (token + 1) % vocab_size
        known.token_ids.append(token)
        known.states += chain([token], known.states[-1])
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = TokenLogprobs(-0.5, ((token, -0.5),) * min(sampling.logprobs, 1))
        return SampledToken(seq_id, position, token, logprobs)
