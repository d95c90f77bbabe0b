"""The in-process engine over a fake runner."""

import signal

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.engine import Engine
from qwen3_a8w8.engine.request import EngineRequest
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import CapacityError, EngineDeadError, InvalidRequestError
from tests.support.fakes import FakeRunner, expected_outputs, make_capabilities


def make_request(i=0, length=6, **sampling):
    sampling = {"seed": i, "max_tokens": 8, "ignore_eos": True} | sampling
    return EngineRequest(tuple(range(10 + i, 10 + i + length)), SamplingParams(**sampling))


@pytest.fixture
def runner():
    return FakeRunner()


@pytest.fixture(params=[0, 1], ids=["lookahead0", "lookahead1"])
def engine(request, runner):
    engine = Engine(runner, EngineConfig(lookahead=request.param))
    yield engine
    engine.close()


def test_generate_gives_outputs_in_order_of_requests(engine, runner):
    requests = [make_request(i, length=1 + i % 7, n=1 + i % 2) for i in range(40)]
    outputs = engine.generate(requests)
    expected = [tokens for r in requests for tokens in expected_outputs(r, runner.capabilities)]
    assert [list(output.token_ids) for output in outputs] == expected
    assert [(o.request_index, o.index) for o in outputs] == [
        (i, j) for i, r in enumerate(requests) for j in range(r.sampling.n)
    ]
    assert {output.finish_reason for output in outputs} == {"length"}
    assert runner.known == {}
    assert engine.stats().num_blocks_in_use == 0


def test_generate_more_than_the_queue_holds_adds_them_as_others_end():
    engine = Engine(FakeRunner(), EngineConfig(max_running_requests=2, max_queued_requests=1))
    assert len(engine.generate([make_request(i) for i in range(20)])) == 20
    with pytest.raises(CapacityError, match="4 more"):
        engine.generate([make_request(n=4)])
    engine.close()


def test_generate_with_one_bad_request_starts_none(engine, runner):
    with pytest.raises(InvalidRequestError):
        engine.generate([make_request(), EngineRequest((), SamplingParams())])
    assert runner.plans == []


def test_generate_with_logprobs_gives_one_per_token(engine):
    (output,) = engine.generate([make_request(logprobs=1)])
    assert len(output.logprobs) == 8
    assert output.logprobs[0].top == ((output.token_ids[0], -0.5),)


def test_generate_hook_ends_sequence_with_stop(engine, runner):
    seen = []

    def stop_after_three(request_index, index, event):
        seen.append((request_index, index))
        return len(seen) == 3

    (output,) = engine.generate([make_request()], stop_after_three)
    (whole,) = expected_outputs(make_request(), runner.capabilities)
    assert output.finish_reason == "stop"
    assert list(output.token_ids) == whole[:3]
    assert seen == [(0, 0)] * 3
    assert runner.known == {}
    assert engine.stats().num_blocks_in_use == 0


def test_generate_resumed_request_gives_whole_output(engine, runner):
    (whole,) = expected_outputs(make_request(), runner.capabilities)
    request = make_request()
    (output,) = engine.generate(
        [EngineRequest(request.prompt_token_ids, request.sampling, tuple(whole[:5]))]
    )
    assert list(output.token_ids) == whole


def test_generate_batch_of_sixteen_decodes_as_one(engine, runner):
    requests = [make_request(i, length=4, max_tokens=3) for i in range(16)]
    outputs = engine.generate_batch(requests)
    expected = [tokens for r in requests for tokens in expected_outputs(r, runner.capabilities)]
    assert [list(output.token_ids) for output in outputs] == expected
    assert engine.stats().counters.decode_batches == {16: 2}


def test_generate_batch_of_one_decodes_in_b1(engine):
    (output,) = engine.generate_batch([make_request()])
    assert len(output.token_ids) == 8
    assert engine.stats().counters.decode_batches == {1: 7}


def test_stream_gives_tokens_one_by_one(engine, runner):
    events = list(engine.stream(make_request()))
    assert [event.token_ids[0] for event in events] == expected_outputs(
        make_request(), runner.capabilities
    )[0]
    assert [event.finish_reason for event in events] == [None] * 7 + ["length"]


def test_streams_read_in_turns_do_not_mix(engine, runner):
    requests = [make_request(i) for i in range(3)]
    streams = [engine.stream(request) for request in requests]
    got = [[], [], []]
    for _ in range(8):
        for tokens, stream in zip(got, streams, strict=True):
            tokens += next(stream).token_ids
    assert got == [expected_outputs(request, runner.capabilities)[0] for request in requests]


def test_stream_closed_early_frees_everything(engine, runner):
    stream = engine.stream(make_request())
    next(stream)
    stream.close()
    assert engine.stats().num_blocks_in_use == 0
    assert runner.known == {}


def test_stream_never_read_holds_nothing(engine):
    engine.stream(make_request())
    assert engine.stats().num_waiting == 0


def test_runner_failure_is_raised_to_every_caller(engine, runner):
    runner.fail_at_step = 3
    stream = engine.stream(make_request(1, max_tokens=100))
    next(stream)
    with pytest.raises(EngineDeadError, match="OSError: device lost"):
        engine.generate([make_request(i) for i in range(4)])
    with pytest.raises(EngineDeadError, match="device lost"):
        for _ in stream:
            pass
    with pytest.raises(EngineDeadError, match="device lost"):
        engine.generate([make_request()])
    assert engine.stats().num_blocks_in_use == 0
    assert engine.stats().num_finished == {"error": 5}


def test_close_twice_closes_runner_and_refuses_requests():
    runner = FakeRunner()
    engine = Engine(runner, EngineConfig())
    stream = engine.stream(make_request())
    next(stream)
    engine.close()
    engine.close()
    assert runner.num_closed >= 1
    with pytest.raises(EngineDeadError, match="closed"):
        for _ in stream:
            pass
    with pytest.raises(EngineDeadError, match="closed"):
        engine.generate([make_request()])


def test_prompt_logprobs_come_with_every_token_but_the_first(engine, runner):
    wanted = make_request(length=40, prompt_logprobs=1)
    other = make_request(3, length=40)
    outputs = engine.generate([wanted, other])
    (output, plain) = outputs
    assert [(t.position, t.token_id) for t in output.prompt_tokens] == [
        (p, wanted.prompt_token_ids[p]) for p in range(1, 40)
    ]
    assert [t.logprobs.logprob for t in output.prompt_tokens] == [-float(p) for p in range(1, 40)]
    assert plain.prompt_tokens == ()
    for request, result in zip((wanted, other), outputs, strict=True):
        assert [list(result.token_ids)] == expected_outputs(request, runner.capabilities)
    # A prompt that is in the prefix cache is computed again, and gives the same.
    (again,) = engine.generate([wanted])
    assert [(t.position, t.logprobs) for t in again.prompt_tokens] == [
        (t.position, t.logprobs) for t in output.prompt_tokens
    ]


def test_prompt_of_one_token_has_no_logprobs(engine):
    (output,) = engine.generate([make_request(length=1, prompt_logprobs=0)])
    assert output.prompt_tokens == ()
    assert output.finish_reason == "length"


def test_resumed_request_does_not_tell_its_prompt_again(engine):
    request = EngineRequest(
        (10, 11, 12), SamplingParams(seed=0, max_tokens=8, prompt_logprobs=1), (20,)
    )
    (output,) = engine.generate([request])
    assert output.prompt_tokens == ()


class InterruptedRunner(FakeRunner):
    """Ctrl-C comes while a step runs."""

    is_interrupted = False

    def execute(self, plan):
        result = super().execute(plan)
        if self.is_interrupted:
            signal.raise_signal(signal.SIGINT)
        return result


def test_interrupt_while_the_engine_waits_for_a_step_loses_no_result():
    runner = InterruptedRunner()
    # Without lookahead nothing else is done while a step runs.
    engine = Engine(runner, EngineConfig(lookahead=0))
    for i in range(20):
        runner.is_interrupted = True
        with pytest.raises(KeyboardInterrupt):
            engine.generate([make_request(i)])
        runner.is_interrupted = False
        (output,) = engine.generate([make_request(i)])
        assert [list(output.token_ids)] == expected_outputs(make_request(i), make_capabilities())
        assert engine.stats().num_blocks_in_use == 0
    engine.close()


def test_interrupt_between_making_and_sending_a_plan_sends_it_later(engine, monkeypatch):
    submit, sent = engine._worker.submit, []

    def interrupted_once(*args):
        if len(sent) == 1:
            sent.append(None)
            raise KeyboardInterrupt
        sent.append(args)
        return submit(*args)

    monkeypatch.setattr(engine._worker, "submit", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([make_request(1)])
    (output,) = engine.generate([make_request(2)])
    assert [list(output.token_ids)] == expected_outputs(make_request(2), make_capabilities())


def test_forked_child_is_refused():
    engine = Engine(FakeRunner(), EngineConfig())
    engine._pid -= 1  # as in a child, where the process is another one and the threads are gone
    with pytest.raises(EngineDeadError, match="fork"):
        engine.generate([make_request()])
    engine.close()
