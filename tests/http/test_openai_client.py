"""The routes over a fake engine, as the official client sees them."""

import json

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.http.conftest import MAX_BODY_BYTES
from tests.support.fake_deployment import expected_tokens

SEED = 7


def expected_texts(engine, tokenizer, prompt, *, max_tokens, n=1, **fields):
    sampling = SamplingParams(max_tokens=max_tokens, n=n, seed=SEED, **fields)
    outputs = expected_tokens(engine.core.capabilities, tokenizer.encode(prompt), sampling)
    eos = engine.core.capabilities.eos_token_ids
    return [
        tokenizer.decode(ids[:-1] if ids[-1] in eos and not sampling.ignore_eos else ids)
        for ids in outputs
    ]


async def test_completion_gives_the_engines_text(client, engine, tokenizer):
    answer = await client.completions.create(
        model="tiny", prompt="the fox", max_tokens=12, seed=SEED, extra_body={"ignore_eos": True}
    )
    (text,) = expected_texts(engine, tokenizer, "the fox", max_tokens=12, ignore_eos=True)
    assert answer.choices[0].text == text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(tokenizer.encode("the fox"))
    assert answer.usage.completion_tokens == 12


async def test_completion_streamed_gives_the_same_text_and_one_finish_reason(
    client, engine, tokenizer
):
    stream = await client.completions.create(
        model="tiny",
        prompt="the fox",
        max_tokens=12,
        seed=SEED,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    (text,) = expected_texts(engine, tokenizer, "the fox", max_tokens=12, ignore_eos=True)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12


async def test_prompt_array_with_n_gives_independent_choices_in_order(client, engine, tokenizer):
    answer = await client.completions.create(
        model="tiny",
        prompt=["the fox", "the dog"],
        n=2,
        max_tokens=6,
        seed=SEED,
        extra_body={"ignore_eos": True},
    )
    expected = [
        text
        for prompt in ("the fox", "the dog")
        for text in expected_texts(engine, tokenizer, prompt, max_tokens=6, n=2, ignore_eos=True)
    ]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(expected)) == 4


async def test_stop_string_ends_the_text_and_the_sequence(client, engine, tokenizer):
    (text,) = expected_texts(engine, tokenizer, "the fox", max_tokens=60, ignore_eos=True)
    stop = text[10:12]
    answer = await client.completions.create(
        model="tiny",
        prompt="the fox",
        max_tokens=60,
        seed=SEED,
        stop=[stop],
        extra_body={"ignore_eos": True},
    )
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < 60


async def test_chat_renders_the_template_and_streams_a_message(client, tokenizer):
    request = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 8,
        "seed": SEED,
        "extra_body": {"ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}},
    }
    whole = await client.chat.completions.create(**request)
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert whole.usage.prompt_tokens == len(tokenizer.encode(prompt))
    chunks = [chunk async for chunk in await client.chat.completions.create(**request, stream=True)]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_completion_logprobs_are_reported_per_token(client):
    answer = await client.completions.create(
        model="tiny", prompt="the fox", max_tokens=3, logprobs=1, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].logprobs.token_logprobs == [-0.5, -0.5, -0.5]


async def test_models_are_listed_with_their_context_length(client):
    (card,) = (await client.models.list()).data
    assert card.id == "tiny"
    assert card.max_model_len == 256
    assert (await client.models.retrieve("tiny")).id == "tiny"


async def test_batch_of_sixteen_runs_as_one_true_batch(http, engine):
    prompts = [f"the fox {i}" for i in range(16)]
    body = {"prompt": prompts, "max_tokens": 4, "seed": SEED, "ignore_eos": True}
    answer = await http.post("/v1/batch_generate", json=body)
    assert answer.status_code == 200
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(16))
    decodes = [plan.decode for plan in engine.runner.plans if plan.decode]
    assert {decode.batch_size for decode in decodes} == {16}
    assert all(len(decode.rows) == 16 for decode in decodes)


@pytest.mark.parametrize("num_prompts", [2, 15, 17])
async def test_batch_of_another_size_is_refused_before_anything_runs(http, engine, num_prompts):
    body = {"prompt": ["x"] * num_prompts}
    answer = await http.post("/v1/batch_generate", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "unsupported_batch_size"
    assert str(num_prompts) in error["message"]
    assert "1 or 16" in error["message"]
    assert engine.runner.plans == []


@pytest.mark.parametrize("field", ["prompt", "prompts"])
@pytest.mark.parametrize("prompts", [["x"] * 3, ["the fox " * 300], [""], [5, "x"]])
async def test_bad_batch_names_the_field_that_was_sent(http, field, prompts):
    answer = await http.post("/v1/batch_generate", json={field: prompts})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


BAD_REQUESTS = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": "x" * 3000}, "prompt"),
    ({"prompt": [100_000]}, "prompt"),
    ({}, "prompt"),
    ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"prompt": "x", "temperature": -1}, "temperature"),
    ({"prompt": "x", "temperature": float("nan")}, "temperature"),
    ({"prompt": "x", "top_p": 2}, "top_p"),
    ({"prompt": "x", "n": 17}, "n"),
    ({"prompt": "x", "logit_bias": {"100000": 1}}, "logit_bias"),
    ({"prompt": "x", "seed": "one"}, "seed"),
]


@pytest.mark.parametrize(("body", "param"), BAD_REQUESTS)
async def test_bad_completion_gives_400_and_names_the_field(http, body, param):
    import json

    answer = await http.post("/v1/completions", content=json.dumps(body))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]
    good = await http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    assert good.status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 15_000])
async def test_body_that_is_no_json_object_gives_400(http, body):
    answer = await http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_prompt_over_the_context_says_both_lengths(http):
    answer = await http.post("/v1/completions", json={"prompt": [5] * 300})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "300 tokens" in error["message"]
    assert "256 tokens" in error["message"]


async def test_unknown_model_gives_404_with_its_code(client):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(
            model="other", messages=[{"role": "user", "content": "hi"}]
        )
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_body_over_the_limit_gives_413(http):
    answer = await http.post("/v1/completions", json={"prompt": "x" * (MAX_BODY_BYTES + 1)})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)],
)
async def test_unknown_route_or_method_gives_an_openai_error(http, method, path, status):
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_more_prompts_than_the_queue_holds_give_503_with_retry_after(http):
    # 16 may run and 4 wait; one more is one too many, and none of them starts.
    answer = await http.post("/v1/completions", json={"prompt": ["the fox"] * 21, "max_tokens": 50})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "server_overloaded"
    assert int(answer.headers["retry-after"]) >= 1


async def test_engine_that_crashes_ends_a_stream_with_an_error_frame_and_done(http, engine):
    engine.runner.fail_at_step = 5
    body = {"prompt": "x", "max_tokens": 50, "stream": True, "ignore_eos": True}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    frames = answer.text.strip().split("\n\n")
    assert '"code": "engine_dead"' in frames[-2]
    assert frames[-1] == "data: [DONE]"
    health = await http.get("/health")
    assert health.status_code == 503
    assert health.json()["error"]["code"] == "engine_dead"


async def test_engine_that_crashes_before_the_response_gives_503(http, engine):
    engine.runner.fail_at_step = 3
    answer = await http.post(
        "/v1/completions", json={"prompt": "x", "max_tokens": 50, "ignore_eos": True}
    )
    assert answer.status_code == 503


@pytest.mark.parametrize("is_stream", [False, True])
async def test_request_that_breaks_its_step_gets_a_server_error_and_the_next_is_served(
    http, engine, is_stream
):
    engine.runner.poison = {666: 10}
    body = {"prompt": "x", "max_tokens": 50, "ignore_eos": True, "seed": 666, "stream": is_stream}
    answer = await http.post("/v1/completions", json=body)
    if is_stream:
        assert answer.status_code == 200
        *_, failed, done = answer.text.strip().split("\n\n")
        assert done == "data: [DONE]"
        error = json.loads(failed.removeprefix("data: "))["error"]
    else:
        assert answer.status_code == 500
        error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "request_failed")
    assert "log" in error["message"]
    assert "poison" not in error["message"]
    assert (await http.get("/health")).status_code == 200
    good = await http.post("/v1/completions", json=body | {"seed": 1, "stream": False})
    assert good.status_code == 200


async def test_health_and_version_answer(http):
    assert (await http.get("/health")).json() == {"status": "ok"}
    assert "version" in (await http.get("/version")).json()


async def test_metrics_count_what_was_served(client, http):
    await client.completions.create(
        model="tiny", prompt="the fox", max_tokens=5, seed=SEED, extra_body={"ignore_eos": True}
    )
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    replica = ("replica", "fake#1")
    batches = ("qwen3_a8w8_decode_batches_total", ("batch_size", "1"), replica)
    assert samples[batches] == 4  # the first of five tokens comes with the prefill
    ended = ("qwen3_a8w8_request_success_total", ("finished_reason", "length"), replica)
    assert samples[ended] == 1
    assert samples["qwen3_a8w8_kv_blocks_in_use", replica] == 0
    assert samples["qwen3_a8w8_decode_batch_size", replica] == 1
    assert samples["qwen3_a8w8_decode_fill_ratio", replica] == 1
    assert samples["qwen3_a8w8_prefix_cache_hit_rate", replica] == 0
    assert samples["qwen3_a8w8_request_queue_time_seconds_count", replica] == 1
    assert samples["qwen3_a8w8_request_queue_time_seconds_sum", replica] >= 0
    assert samples["qwen3_a8w8_failed_steps_total", replica] == 0
    num_prompt_tokens = samples["qwen3_a8w8_prompt_tokens_total", replica]
    assert num_prompt_tokens > 0
    assert samples["qwen3_a8w8_generation_tokens_total", replica] == 5
    sums = {
        "time_to_first_token_seconds": (1, None),
        "inter_token_latency_seconds": (4, None),
        "request_time_per_output_token_seconds": (1, None),
        "e2e_request_latency_seconds": (1, None),
        "request_prompt_tokens": (1, num_prompt_tokens),
        "request_generation_tokens": (1, 5),
    }
    for name, (count, total) in sums.items():
        metric = f"qwen3_a8w8_{name}"
        assert samples[f"{metric}_count", replica] == count
        assert samples[f"{metric}_bucket", ("le", "+Inf"), replica] == count
        measured = samples[f"{metric}_sum", replica]
        assert measured > 0 if total is None else measured == total
    assert samples["qwen3_a8w8_request_generation_tokens_bucket", ("le", "2.0"), replica] == 0
    assert samples["qwen3_a8w8_request_generation_tokens_bucket", ("le", "5.0"), replica] == 1
