"""Helpers that drive an engine core by hand, one plan at a time."""

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.core import EngineCore
from qwen3_a8w8.engine.plan import SampledToken, StepResult
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.support.fakes import FakeRunner, make_capabilities


def make_core(config=None, **capabilities):
    """A core over the fake runner's capabilities; without lookahead unless `config` says so."""
    return EngineCore(
        make_capabilities(**capabilities), config or EngineConfig(lookahead=0), draw_seed=lambda: 77
    )


def make_request(length=5, first=10, **sampling):
    """A request for four tokens, with `length` ids from `first` on."""
    sampling = {"seed": 1, "max_tokens": 4, "ignore_eos": True} | sampling
    return EngineRequest(tuple(range(first, first + length)), SamplingParams(**sampling))


def run(core, runner=None, max_steps=1000):
    """Plain loop to the end; returns the events by sequence."""
    runner = runner or FakeRunner(core.capabilities)
    events = {}
    for _ in range(max_steps):
        plan = core.plan_step()
        if plan is None:
            return events
        for event in core.complete_step(runner.execute(plan)):
            events.setdefault(event.seq_id, []).append(event)
    raise AssertionError("still busy")


def result_of(plan, token_id):
    """A result in which every sample of the plan is `token_id`."""
    chunks = [(c.seq_id, c.start + c.num_tokens) for c in plan.prefill if c.is_sampled]
    rows = [(r.seq_id, r.position + 1) for r in plan.decode.rows] if plan.decode else []
    samples = tuple(SampledToken(seq_id, pos, token_id) for seq_id, pos in chunks + rows)
    return StepResult(plan.step_id, samples, 0.0)
