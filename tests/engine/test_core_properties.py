"""Random traffic through the engine core: tokens, blocks and ends are always right."""

from collections import Counter, deque
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.experimental import PROMPT_LOOKUP
from tests.support.fakes import expected_outputs, make_capabilities
from tests.support.step_driver import StepDriver

PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SYSTEM_PROMPT = tuple(range(10, 60))


@st.composite
def make_request(draw, max_prompt=40, max_n=3):
    # Prompts are cut from one text or another, so that many share a prefix.
    length = draw(st.integers(1, max_prompt))
    prompt = (SYSTEM_PROMPT[: draw(st.integers(0, 50))] + (draw(st.integers(2, 5)),) * length)[
        -max_prompt if draw(st.booleans()) else 0 :
    ]
    sampling = SamplingParams(
        seed=draw(st.integers(0, 3)),
        max_tokens=draw(st.one_of(st.none(), st.integers(1, 30))),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, 29), max_size=3))),
        n=draw(st.integers(1, max_n)),
    )
    return EngineRequest(
        prompt[:80],
        sampling,
        priority=draw(st.integers(-1, 2)),
        timeout_s=draw(st.one_of(st.none(), st.none(), st.integers(1, 60))),
        cache_salt=draw(st.sampled_from([None, None, "a", "b"])),
    )


make_sizes = st.builds(
    dict,
    num_kv_blocks=st.integers(22, 70),
    block_size=st.sampled_from([4, 8]),
    max_model_len=st.integers(81, 100),
    prefill_chunk_tokens=st.integers(3, 48),
    max_prefill_seqs=st.integers(1, 8),
    decode_step_s=st.sampled_from([{1: 0.01, 16: 0.012}, {1: 0.01, 16: 0.05}, {1: 0.01, 16: 9.0}]),
    vocab_size=st.just(64),  # small, so that stop tokens come up
    num_layers=st.integers(1, 7),
    prefill_token_s=st.sampled_from([0.0, 0.01]),
)
make_config = st.builds(
    EngineConfig,
    lookahead=st.integers(0, 1),
    enable_prefix_caching=st.booleans(),
    max_running_requests=st.integers(1, 16),
    prefill_layers_per_dispatch=st.sampled_from([None, 1, 2, 3]),
    max_decode_stall_ms=st.sampled_from([None, 100.0, 1e9]),
    enable=st.sampled_from([(), (PROMPT_LOOKUP,)]),
)


class Traffic(StepDriver):
    """Random traffic, a step at a time; checks the books after every one."""

    def __init__(self, capabilities, config):
        self.now_s = 0.0
        super().__init__(capabilities, config, clock=lambda: self.now_s)
        self.runner.layers_per_dispatch = (
            config.prefill_layers_per_dispatch or capabilities.num_layers
        )
        self.lookahead = config.lookahead

    def add(self, request):
        """All sequences of a request, not only one."""
        ids = self.core.add(request)
        self.tokens.update((i, []) for i in ids)
        return ids

    def take(self, event):
        super().take(event)
        assert len(event.token_ids) == len(event.logprobs)

    def step(self):
        """Plans one step, and completes one where there are more than may be in flight."""
        self.now_s += 1.0
        plan = self.core.plan_step()
        if plan is not None:
            self.in_flight.append(plan)
        has_work = bool(self.in_flight)
        if self.in_flight and (plan is None or len(self.in_flight) > self.lookahead):
            self.complete()
        self.check_books()
        return has_work

    def check_books(self):
        pool = self.core.pool
        held = Counter()
        for seq in self.core._active:  # also the canary
            held.update(seq.block_ids)
        assert pool.num_in_use == len(held)
        assert pool.num_in_use + pool.num_free == pool.num_usable_blocks
        assert all(pool.ref_count(block) == count for block, count in held.items())

    def check_outputs(self, expected):
        """Whoever ended by itself has all its tokens, whoever was ended the first of them."""
        for seq_id, tokens in expected.items():
            output = self.tokens[seq_id]
            if self.ends[seq_id].finish_reason in ("abort", "timeout", "error"):
                tokens = tokens[: len(output)]
            assert output == tokens

    def run_until_idle(self):
        self.run(max_steps=20_000)
        assert self.core.num_active_sequences == 0
        assert self.core.pool.num_in_use == 0
        assert self.runner.known == {}
        assert set(self.ends) == set(self.tokens)


@PROPERTY
@given(
    sizes=make_sizes,
    config=make_config,
    arrivals=st.lists(st.tuples(st.integers(0, 6), make_request()), min_size=1, max_size=14),
    aborts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=4),
)
def test_random_traffic_gives_each_request_its_own_tokens(sizes, config, arrivals, aborts):
    capabilities = make_capabilities(**sizes)
    traffic = Traffic(capabilities, config)
    expected = {}
    due = deque(arrivals)
    num_idle = due[0][0]
    for tick in range(100):
        while due and num_idle <= 0:
            _, request = due.popleft()
            expected.update(
                zip(traffic.add(request), expected_outputs(request, capabilities), strict=True)
            )
            num_idle = due[0][0] if due else 0
        num_idle -= 1
        for at, seq_id in aborts:
            if at == tick:
                traffic.abort(seq_id)
                traffic.abort(seq_id)
        traffic.step()
    traffic.run_until_idle()
    traffic.check_outputs(expected)


@PROPERTY
@given(
    sizes=make_sizes,
    config=make_config,
    requests=st.lists(make_request(max_n=1), min_size=1, max_size=8),
    poison=st.one_of(st.none(), st.tuples(st.integers(1, 3), st.integers(1, 90))),
    flaky_step=st.integers(0, 40),
    abort=st.one_of(st.none(), st.integers(0, 40)),
)
def test_failing_steps_end_only_what_fails_alone(
    sizes, config, requests, poison, flaky_step, abort
):
    capabilities = make_capabilities(**sizes)
    traffic = Traffic(capabilities, config)
    if poison is None:
        traffic.runner.flaky_steps = {flaky_step}
    else:
        seed, num_tokens = poison
        traffic.runner.poison = {seed: num_tokens}
    # Accepted draft tokens carry a sequence past the token from which on its steps fail.
    num_draft_tokens = capabilities.max_draft_tokens if config.enable else 0
    expected, most_given = {}, {}
    for request in requests:
        (tokens,) = expected_outputs(request, capabilities)
        (seq_id,) = traffic.add(request)
        expected[seq_id] = tokens
        if poison is not None and request.sampling.seed == seed:
            # The step that reads the token before its last one is the last that it needs.
            num_read = len(request.prompt_token_ids) + len(tokens) - 1
            if num_read >= num_tokens:
                num_given = max(0, num_tokens - len(request.prompt_token_ids))
                most_given[seq_id] = num_given + num_draft_tokens
        if abort is not None:
            for _ in range(abort):
                traffic.step()
            traffic.abort(seq_id)
            abort = None
    traffic.run_until_idle()
    traffic.check_outputs(expected)
    for seq_id, end in traffic.ends.items():
        if end.finish_reason == "error":
            assert len(traffic.tokens[seq_id]) <= most_given[seq_id]
        elif end.finish_reason not in ("abort", "timeout"):
            assert seq_id not in most_given or len(expected[seq_id]) <= most_given[seq_id]


@PROPERTY
@given(
    sizes=make_sizes,
    config=make_config,
    request=make_request(max_n=1),
    others=st.lists(make_request(), max_size=5),
    data=st.data(),
)
def test_resumed_request_continues_as_if_never_interrupted(sizes, config, request, others, data):
    capabilities = make_capabilities(**sizes)
    (whole,) = expected_outputs(request, capabilities)
    num_kept = data.draw(st.integers(0, len(whole) - 1))
    traffic = Traffic(capabilities, config)
    for other in others:
        traffic.add(other)
    resumed = replace(request, output_token_ids=tuple(whole[:num_kept]))
    (seq_id,) = traffic.add(resumed)
    traffic.run_until_idle()
    traffic.check_outputs({seq_id: whole[num_kept:]})


@settings(PROPERTY, max_examples=60)
@given(
    sizes=make_sizes,
    config=make_config,
    before=st.lists(make_request(), max_size=3),
    batch=st.lists(make_request(max_prompt=12, max_n=1), min_size=4, max_size=4),
    after=st.lists(make_request(), max_size=6),
    abort=st.one_of(st.none(), st.integers(0, 40)),
)
def test_explicit_batch_among_others_stays_one_batch(sizes, config, before, batch, after, abort):
    # Batches of 4 beside up to 12 others are harder to keep apart than batches of 16.
    sizes = sizes | {
        "decode_batch_sizes": (1, 4),
        "decode_step_s": {1: 0.01, 4: sizes["decode_step_s"][16]},
        "max_prefill_seqs": max(2, sizes["max_prefill_seqs"]),
    }
    batch = [
        replace(request, prompt_token_ids=request.prompt_token_ids[:15], timeout_s=None)
        for request in batch
    ]
    capabilities = make_capabilities(**sizes)
    config = replace(config, max_running_requests=max(4, config.max_running_requests))
    traffic = Traffic(capabilities, config)
    expected = {}
    for request in before:
        expected.update(
            zip(traffic.add(request), expected_outputs(request, capabilities), strict=True)
        )
    traffic.step()
    members = traffic.add_batch(batch)
    limits = {i: traffic.core.sequence(i).max_tokens for i in members}
    for seq_id, request in zip(members, batch, strict=True):
        # Where the cache can't hold all outputs to the end, the batch's lengths are clamped.
        (tokens,) = expected_outputs(request, capabilities)
        expected[seq_id] = tokens[: limits[seq_id]]
    for request in after:
        expected.update(
            zip(traffic.add(request), expected_outputs(request, capabilities), strict=True)
        )
    if abort is not None:
        for _ in range(abort):
            traffic.step()
        traffic.abort(members[1])
    traffic.run_until_idle()
    traffic.check_outputs(expected)

    left_out, prefilled = set(), set()
    for plan in traffic.runner.plans:
        rows = {row.seq_id for row in plan.decode.rows} if plan.decode else set()
        if rows & set(members):
            assert rows <= set(members)
            assert plan.decode.batch_size == 4
            assert not rows & left_out, "a row is only left out once it has ended"
            left_out = set(members) - rows
            if abort is None:
                assert prefilled == set(members)
        if plan.prefill_layers is None or plan.prefill_layers[1] == capabilities.num_layers:
            sampled = {chunk.seq_id for chunk in plan.prefill if chunk.is_sampled}
            prefilled |= sampled & set(members)
