"""Fields beyond the usual ones, and raw frames of streams."""

import asyncio
import json

import pytest

from deployments.http.streaming import EventStreamResponse
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.chat.writer import ChatWriter
from qwen3_a8w8.openai.request import validate_request
from qwen3_a8w8.openai.response import ResponseIdentity

USER = {"role": "user", "content": "hi"}
SEED = 7


async def chat(http, **fields):
    body = {"messages": [USER], "max_tokens": 6, "seed": SEED} | fields
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def chunks(http, path="/v1/chat/completions", **fields):
    body = {"max_tokens": 6, "seed": SEED, "stream": True, "ignore_eos": True} | fields
    if path.endswith("chat/completions"):
        body["messages"] = [USER]
    answer = await http.post(path, json=body)
    frames = answer.text.strip().split("\n\n")
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


async def test_unknown_fields_are_accepted_and_named_in_a_header(http):
    answer = await chat(http, safety_identifier="x", verbosity="low", **{"not ä header": 1})
    assert answer.headers["x-unknown-fields"] == "safety_identifier, verbosity"
    assert "x-unknown-fields" not in (await chat(http, user="me", metadata={"a": "b"})).headers
    stream = await chat(http, stream=True, verbosity="low")
    assert stream.headers["x-unknown-fields"] == "verbosity"


async def test_token_ids_are_returned_whole_and_in_pieces(http, tokenizer):
    request = {"return_token_ids": True, "ignore_eos": True}
    body = (await chat(http, **request)).json()
    prompt = (await http.post("/v1/chat/completions/render", json={"messages": [USER]})).json()
    assert body["prompt_token_ids"] == prompt["prompt_token_ids"]
    ids = body["choices"][0]["token_ids"]
    assert len(ids) == 6
    pieces = await chunks(http, **request)
    assert pieces[0]["prompt_token_ids"] == prompt["prompt_token_ids"]
    assert all("prompt_token_ids" not in piece for piece in pieces[1:])
    choices = [piece["choices"][0] for piece in pieces]
    assert [i for choice in choices for i in choice.get("token_ids", [])] == ids


async def test_completion_token_ids_are_returned_per_choice(http, tokenizer):
    body = {"prompt": ["the fox", "dog"], "max_tokens": 3, "n": 2, "return_token_ids": True}
    choices = (await http.post("/v1/completions", json=body | {"seed": SEED})).json()["choices"]
    prompts = [tokenizer.encode(text) for text in ("the fox", "the fox", "dog", "dog")]
    assert [choice["prompt_token_ids"] for choice in choices] == prompts
    pieces = await chunks(http, "/v1/completions", **body)
    for choice in choices:
        own = [p["choices"][0] for p in pieces if p["choices"][0]["index"] == choice["index"]]
        assert own[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert sum(len(piece["token_ids"]) for piece in own) == 3


async def test_token_ids_are_not_there_unless_asked_for(http):
    assert "token_ids" not in (await chat(http)).text


async def test_continuous_usage_grows_with_every_chunk(http):
    options = {"include_usage": True, "continuous_usage_stats": True}
    pieces = await chunks(http, stream_options=options)
    counts = [piece["usage"]["completion_tokens"] for piece in pieces]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert pieces[-1]["choices"] == []
    pieces = await chunks(http, "/v1/completions", prompt="x", stream_options=options)
    assert pieces[0]["usage"]["completion_tokens"] >= 1


async def test_max_tokens_is_clamped_unless_strict(http):
    body = {"prompt": "the fox", "max_tokens": 10_000, "ignore_eos": True}
    answer = (await http.post("/v1/completions", json=body)).json()
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"
    refused = await http.post("/v1/completions", json=body | {"strict_max_tokens": True})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    body = {"prompt": "the fox", "max_tokens": 2, "strict_max_tokens": True}
    assert (await http.post("/v1/completions", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "is_thinking"),
    [
        ({}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"thinking_budget": 0}, False),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            True,
        ),
    ],
)
def test_effort_and_budget_set_the_templates_switch(fields, is_thinking):
    request = validate_request(ChatRequest, {"messages": [USER], **fields})
    assert request.template_kwargs().get("enable_thinking", True) is is_thinking


async def test_thinking_budget_closes_the_block_after_so_many_tokens(http, say, tokenizer):
    say("<think>\n" + "fox " * 40)
    request = {"thinking_budget": 12, "max_tokens": 30, "return_token_ids": True}
    body = (await chat(http, **request)).json()
    ids = body["choices"][0]["token_ids"]
    end = tokenizer.encode("\n</think>\n\n")
    assert ids[12 : 12 + len(end)] == end
    assert ids.count(tokenizer.token_id("</think>")) == 1
    message = body["choices"][0]["message"]
    assert message["reasoning_content"].startswith("fox fox")
    assert message["content"].startswith("fox") or message["content"].startswith(" fox")
    details = body["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == 12 + end.index(tokenizer.token_id("</think>")) + 1


async def test_thinking_that_ends_in_time_is_left_alone(http, say, tokenizer):
    say("<think>\nfox\n</think>\n\nthe dog")
    body = (await chat(http, thinking_budget=50, max_tokens=60)).json()
    assert body["choices"][0]["message"]["content"] == "the dog"
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_reasoning_is_left_out_where_it_is_not_wanted(http, say):
    say("<think>\nfox\n</think>\n\nthe dog")
    message = (await chat(http, max_tokens=60)).json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "fox"
    request = {"max_tokens": 60, "include_reasoning": False}
    body = (await chat(http, **request)).json()
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "the dog",
        "refusal": None,
    }
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert "fox" not in (await chat(http, stream=True, **request)).text


async def test_logprob_bytes_put_a_cut_character_together_again(http, say, tokenizer):
    say("🙂é")
    body = (await chat(http, max_tokens=20, logprobs=True)).json()
    content = body["choices"][0]["logprobs"]["content"]
    data = b"".join(bytes(entry["bytes"]) for entry in content[:-1])
    assert data.decode() == body["choices"][0]["message"]["content"] == "🙂é"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["x" * 2000]}, "stop"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"thinking_budget": "5"}, "thinking_budget"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"include_reasoning": "no"}, "include_reasoning"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"strict_max_tokens": "yes"}, "strict_max_tokens"),
        ({"priority": "high"}, "priority"),
        ({"metadata": "x"}, "metadata"),
        ({"user": 5}, "user"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"min_tokens": 9, "max_tokens": 2}, "min_tokens"),
        ({"stream": True, "stream_options": 5}, "stream_options"),
    ],
)
async def test_wrong_type_or_value_gives_400_with_its_field(http, fields, param):
    answer = await http.post("/v1/chat/completions", json={"messages": [USER], **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


class Silent:
    """A generation that emits nothing until it is released."""

    num_cached_tokens = (0,)
    waits_for_engine = False

    def __init__(self, periods):
        self.periods = periods

    async def every(self, period_s):
        assert period_s == 0.5
        for update in self.periods:
            await asyncio.sleep(0)
            yield update

    def close(self):
        pass


async def test_silent_stream_gets_comments(service):
    request = validate_request(ChatRequest, {"messages": [USER], "stream": True, "max_tokens": 1})
    identity = ResponseIdentity.new("chatcmpl-", "tiny")
    generation, writer = await service.start_chat(request, identity, ChatWriter)
    updates = [item async for item in generation]
    response = EventStreamResponse((Silent([[], [], *updates]), writer), {}, 0.5)
    frames = [frame async for frame in response.body_iterator]
    assert frames[:2] == [": keep-alive\n\n"] * 2
    assert frames[2].startswith("data: {")
    assert frames[-1] == "data: [DONE]\n\n"


async def test_generation_gives_empty_updates_when_nothing_comes(service, engine):
    held = []
    answer = engine._answer
    engine._answer = held.append
    request = validate_request(ChatRequest, {"messages": [USER], "max_tokens": 1})
    identity = ResponseIdentity.new("chatcmpl-", "tiny")
    generation, _ = await service.start_chat(request, identity, ChatWriter)
    seen = []
    async for updates in generation.every(0.001):
        seen.append(updates)
        engine._answer = answer
        while held:
            answer(held.pop(0))
    assert seen[0] == []
    assert seen[-1][0][1].finish_reason is not None
