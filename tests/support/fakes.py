"""Stand-ins shared between tests."""

from dataclasses import dataclass, field

from qwen3_a8w8.config import SCRATCH_BLOCK
from qwen3_a8w8.engine.plan import (
    PromptToken,
    RunnerCapabilities,
    SampledToken,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from qwen3_a8w8.engine.request import EngineRequest, derive_seed
from qwen3_a8w8.errors import InvalidRequestError

EOS = 1
COPYING_SEED = 3


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
        "max_draft_tokens": 7,
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
    """The token a fake model samples at `position` after tokens whose chain value is `state`.

    With COPYING_SEED the text repeats itself, so that draft tokens are accepted.
    """
    if seed == COPYING_SEED:
        return 2 + position % 6
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
        self.script: list[int] = []  # what every sequence says, in place of the rule
        self.fail_at_step: int | None = None  # from here on it is broken
        self.flaky_steps: set[int] = set()  # fail once, after all has been done
        self.poison: dict[int, int] = {}  # seed -> tokens from which on its step fails midway
        self.layers_per_dispatch = self.capabilities.num_layers
        self._open_chunks: tuple = ()
        self._next_layer = 0
        self._cache: dict[tuple[int, int], int] = {}
        self._written: set[tuple[int, int]] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step."""
        assert plan.step_id == len(self.plans), "plans are executed in order, each once"
        self.plans.append(plan)
        if self.fail_at_step is not None and plan.step_id >= self.fail_at_step:
            raise OSError("device lost")
        for seq_id in plan.release:
            self.known.pop(seq_id, None)
        for start in plan.start:
            assert start.seq_id not in self.known, "a sequence is started once, or released first"
            assert start.sampling.seed is not None
            assert start.sampling.n == 1
            tokens = [*start.prompt_token_ids, *start.output_token_ids]
            self.known[start.seq_id] = _Known(start, tokens, chain(tokens))
        self._written.clear()
        self._check_shape(plan)
        self._check_layers(plan)
        is_last_group = self._next_layer == 0
        sampled = []
        prompt_tokens = []
        for chunk in plan.prefill:
            known = self._known(chunk.seq_id)
            end = chunk.start + chunk.num_tokens
            assert chunk.num_tokens >= 1
            assert end <= len(known.token_ids)
            assert chunk.is_sampled == (end == len(known.token_ids))
            self._attend(known.states, chunk, chunk.start, end)
            if chunk.has_prompt_logprobs and is_last_group:
                last = end if chunk.is_sampled else end + 1
                prompt_tokens += [
                    self._look_up(chunk.seq_id, known, p) for p in range(chunk.start + 1, last)
                ]
            if chunk.is_sampled and is_last_group:
                sampled.append(self._sample(chunk.seq_id, known))
        for row in plan.decode.rows if plan.decode else ():
            known = self._known(row.seq_id)
            assert row.position == len(known.token_ids) - 1
            drafts = row.draft_token_ids
            end = row.position + 1 + len(drafts)
            self._attend([*known.states, *chain(drafts, known.states[-1])], row, row.position, end)
            sampled.append(self._sample(row.seq_id, known))
            for draft in drafts:
                if sampled[-1].token_id != draft:
                    break
                sampled.append(self._sample(row.seq_id, known))
        if plan.step_id in self.flaky_steps:
            raise MemoryError("just now")
        return StepResult(plan.step_id, tuple(sampled), 0.001, prompt_tokens=tuple(prompt_tokens))

    def prepare_grammar(self, structured) -> None:
        """Refuses: a fake model has no grammars."""
        raise InvalidRequestError("a fake runner has no grammars", param=structured.param)

    def close(self) -> None:
        """Counts its calls."""
        self.num_closed += 1

    def _known(self, seq_id: int) -> _Known:
        assert seq_id in self.known, f"sequence {seq_id} is unknown"
        known = self.known[seq_id]
        if len(known.token_ids) >= self.poison.get(known.start.sampling.seed, 1 << 30):
            raise ValueError("poison")
        return known

    def _check_shape(self, plan: StepPlan) -> None:
        capabilities = self.capabilities
        assert sum(chunk.num_logits for chunk in plan.prefill) <= capabilities.max_prefill_seqs
        num_tokens = sum(chunk.num_tokens for chunk in plan.prefill)
        assert num_tokens <= capabilities.prefill_chunk_tokens
        rows = plan.decode.rows if plan.decode else ()
        ids = [work.seq_id for work in (*plan.prefill, *rows)]
        assert len(ids) == len(set(ids)), "a sequence is in a step once"
        if plan.decode:
            assert plan.decode.batch_size in capabilities.decode_batch_sizes
            assert 1 <= len(rows) <= plan.decode.batch_size
        most_drafts = capabilities.max_draft_tokens if len(rows) == 1 else 0
        assert all(len(row.draft_token_ids) <= most_drafts for row in rows)

    def _check_layers(self, plan: StepPlan) -> None:
        """A dispatch starts at layer 0 and continues in order, with the chunks it started with."""
        num_layers = self.capabilities.num_layers
        if not plan.prefill:
            assert plan.prefill_layers is None
            return
        begin, end = plan.prefill_layers or (0, num_layers)
        assert begin == 0 or begin == self._next_layer
        assert end == min(begin + self.layers_per_dispatch, num_layers)
        if begin > 0:
            assert set(plan.prefill) <= set(self._open_chunks)
        self._open_chunks = plan.prefill
        self._next_layer = end % num_layers

    def _attend(self, states: list[int], work, start: int, end: int) -> None:
        size, block_ids = self.capabilities.block_size, work.block_ids
        assert len(set(block_ids)) == len(block_ids)
        assert SCRATCH_BLOCK not in block_ids
        assert all(0 < block_id < self.capabilities.num_kv_blocks for block_id in block_ids)
        assert len(block_ids) * size >= end, "the block table covers every position"
        assert end <= self.capabilities.max_model_len
        for position in range(start):
            slot = (block_ids[position // size], position % size)
            assert self._cache.get(slot) == states[position], (
                f"sequence {work.seq_id} reads a wrong token at position {position}"
            )
        for position in range(start, end):
            slot = (block_ids[position // size], position % size)
            assert slot not in self._written, "two sequences write one slot in one step"
            self._written.add(slot)
            self._cache[slot] = states[position]

    def _look_up(self, seq_id: int, known: _Known, position: int) -> PromptToken:
        token_id = known.token_ids[position]
        logprob = -float(position)
        top = ((token_id, logprob),) * min(known.start.sampling.prompt_logprobs, 1)
        return PromptToken(seq_id, position, token_id, TokenLogprobs(logprob, top))

    def _sample(self, seq_id: int, known: _Known) -> SampledToken:
        sampling = known.start.sampling
        position = len(known.token_ids)
        vocab_size = self.capabilities.vocab_size
        token = next_token(known.states[-1], position, sampling.seed, vocab_size)
        num_output = position - len(known.start.prompt_token_ids)
        if self.script:
            token = self.script[min(num_output, len(self.script) - 1)]
        if sampling.thinking_limit is not None:
            output = known.token_ids[len(known.start.prompt_token_ids) :]
            forced = sampling.thinking_limit.forced_id(output)
            token = token if forced is None else forced
        while num_output < sampling.min_tokens and token in known.start.stop_token_ids:
            token = (token + 1) % vocab_size
        known.token_ids.append(token)
        known.states += chain([token], known.states[-1])
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = TokenLogprobs(-0.5, ((token, -0.5),) * min(sampling.logprobs, 1))
        return SampledToken(seq_id, position, token, logprobs)
