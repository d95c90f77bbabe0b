"""What fields of other servers change in an answer, seen from outside."""

import json

import pytest

USER = {"role": "user", "content": "hi"}
THOUGHT = "<think>\nfox\n</think>\n\n"


async def chat(http, **fields):
    answer = await http.post(
        "/v1/chat/completions", json={"messages": [USER], "max_tokens": 60, "seed": 7} | fields
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def complete(http, **fields):
    answer = await http.post("/v1/completions", json={"prompt": "the fox", "seed": 7} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def rendered(http, path="/v1/chat/completions/render", **body):
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("has_think_block", [True, False])
async def test_final_message_is_continued_in_content(http, say, has_think_block):
    start = f"{THOUGHT if has_think_block else ''}The capital"
    messages = [USER, {"role": "assistant", "content": start}]
    request = {
        "messages": messages,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    prompt = (await rendered(http, **request))["prompt"]
    assert prompt.endswith("</think>\n\nThe capital" if has_think_block else "The capital")
    say(" of France is Paris.")
    message = (await chat(http, **request))["choices"][0]["message"]
    assert message["content"] == " of France is Paris."
    assert "reasoning_content" not in message


async def test_open_think_block_of_the_final_message_is_continued(http, say):
    say(" see</think>\n\nyes")
    messages = [USER, {"role": "assistant", "content": "<think>\nLet me"}]
    body = await chat(http, messages=messages, continue_final_message=True)
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (" see", "yes")


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([USER], {}),
        ([USER, {"role": "assistant", "content": "a"}], {"add_generation_prompt": True}),
        ([USER, {"role": "assistant", "content": ""}], {}),
    ],
)
async def test_message_that_cannot_be_continued_is_refused(http, messages, fields):
    body = {"messages": messages, "continue_final_message": True, **fields}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continue_final_message"


async def test_prompt_without_the_start_of_an_answer(http):
    whole = (await rendered(http, messages=[USER]))["prompt"]
    bare = (await rendered(http, messages=[USER], add_generation_prompt=False))["prompt"]
    assert whole == bare + "<|im_start|>assistant\n"


@pytest.mark.parametrize("name", ["include_stop_str_in_output", "no_stop_trim"])
@pytest.mark.parametrize("is_included", [True, False])
async def test_stop_string_is_part_of_the_text_if_asked_for(http, say, name, is_included):
    say("the dog and the fox")
    body = await complete(http, stop=["and"], max_tokens=30, **{name: is_included})
    choice = body["choices"][0]
    assert choice["text"] == ("the dog and" if is_included else "the dog ")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "and")


async def test_stop_reason_is_a_string_an_id_of_the_request_or_missing(http, say, tokenizer):
    say("the fox runs")
    choice = (await chat(http, stop=["runs"]))["choices"][0]
    assert choice["stop_reason"] == "runs"
    third = tokenizer.encode("the fox runs")[2]
    choice = (await complete(http, stop_token_ids=[third]))["choices"][0]
    assert choice["stop_reason"] == third
    choice = (await chat(http))["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "stop_reason" not in choice


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_stop_strings_count_after_the_think_block(http, say, is_streamed):
    say(f"{THOUGHT}the fox runs")
    fields = {"stop": ["fox"], "max_tokens": 60, "stream": is_streamed}
    body = {"messages": [USER], **fields}
    answer = await http.post("/v1/chat/completions", json=body)
    if is_streamed:
        frames = [json.loads(line[6:]) for line in answer.text.splitlines() if "{" in line]
        deltas = [frame["choices"][0]["delta"] for frame in frames]
        assert "".join(delta.get("reasoning", "") for delta in deltas) == "fox"
        assert "".join(delta.get("content", "") for delta in deltas) == "the "
        assert frames[-1]["choices"][0]["stop_reason"] == "fox"
        return
    choice = answer.json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "fox"
    assert choice["message"]["content"] == "the "
    choice = (await chat(http, stop_in_reasoning=True, stop=["fox"]))["choices"][0]
    assert choice["message"].get("reasoning_content") is None
    assert choice["message"]["content"] == ""


async def test_reasoning_stays_in_the_content_if_not_separated(http, say):
    say(f"{THOUGHT}the dog")
    message = (await chat(http, separate_reasoning=False))["choices"][0]["message"]
    assert message["content"] == f"{THOUGHT}the dog"
    assert "reasoning_content" not in message


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens"])
async def test_thinking_budget_has_the_names_of_other_servers(http, say, name):
    say("<think>\n" + "fox " * 40)
    ours = await chat(http, thinking_budget=12)
    theirs = await chat(http, **{name: 12})
    assert theirs["choices"] == ours["choices"]
    unlimited = await chat(http, **{name: -1})
    assert unlimited["choices"] != ours["choices"]
    body = {"messages": [USER], "thinking_budget": 3, name: 4}
    refused = await http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, slice(-3, None)),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, slice(3)),
        ({"truncate_prompt_tokens": 1000}, slice(None)),
        ({"truncate_prompt_tokens": -1, "max_tokens": 50}, slice(-206, None)),
    ],
)
async def test_prompts_are_truncated(http, tokenizer, fields, kept):
    text = "the dog and the fox " * 60
    ids = tokenizer.encode(text)
    if kept == slice(None):
        text = "the dog and the fox"
        ids = tokenizer.encode(text)
    body = await complete(http, prompt=text, return_token_ids=True, ignore_eos=True, **fields)
    assert body["choices"][0]["prompt_token_ids"] == ids[kept]
    echoed = await complete(http, prompt=text, echo=True, **fields)
    assert echoed["choices"][0]["text"].startswith(tokenizer.decode(ids[kept]))
    whole = (await rendered(http, messages=[USER]))["prompt_token_ids"]
    cut = await rendered(http, messages=[USER], truncate_prompt_tokens=3)
    assert cut["prompt_token_ids"] == whole[-3:]
    assert cut["prompt"] == tokenizer.decode(whole[-3:], skip_special_tokens=False)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_no_tokens_are_generated_where_none_are_asked_for(http, tokenizer, is_streamed):
    if is_streamed:
        body = {"prompt": "the fox", "max_tokens": 0, "echo": True, "stream": True}
        answer = await http.post("/v1/completions", json=body)
        (frame, done) = answer.text.strip().split("\n\n")
        assert '"text":"the fox"' in frame
        assert '"finish_reason":"length"' in frame
        assert done == "data: [DONE]"
        return
    body = await complete(http, max_tokens=0, echo=True, logprobs=1)
    choice = body["choices"][0]
    ids = tokenizer.encode("the fox")
    assert choice["text"] == "the fox"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == [tokenizer.token_text(i) for i in ids]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["token_logprobs"]) == len(ids)
    assert body["usage"]["completion_tokens"] == 0
    body = await complete(http, max_tokens=0)
    assert body["choices"][0]["text"] == ""


@pytest.mark.parametrize("token_id", [100_000, 2**40])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions/render"])
async def test_id_that_is_no_token_is_refused_with_its_place(http, path, token_id):
    for prompt, place in (([1, token_id], "prompt[1]"), ([[1], [1, 2, token_id]], "prompt[1][2]")):
        answer = await http.post(path, json={"prompt": prompt, "echo": True})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "prompt"
        assert error["message"].startswith(f"{place} is token {token_id}")


async def test_seeds_may_be_negative(http):
    first, again = [await complete(http, seed=-5) for _ in range(2)]
    assert first["choices"] == again["choices"]
    assert (await complete(http, seed=-1))["choices"]


async def test_running_usage_counts_cached_tokens(http):
    prompt = "the dog and the fox " * 8
    request = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    await http.post("/v1/completions", json=request)
    answer = await http.post("/v1/completions", json=request | {"stream_options": options})
    frames = [line for line in answer.text.splitlines() if '"usage"' in line]
    counts = {frame.partition('"cached_tokens":')[2].partition("}")[0] for frame in frames}
    assert len(frames) >= 2
    (count,) = counts
    assert int(count) > 0


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_timings_are_there_if_asked_for(http, tokenizer, path, is_streamed):
    prompt = {"messages": [USER]} if "chat" in path else {"prompt": "the fox"}
    request = {"max_tokens": 4, "ignore_eos": True, "stream": is_streamed, **prompt}
    assert "timings" not in (await http.post(path, json=request)).text
    answer = await http.post(path, json=request | {"timings_per_token": True})
    lines = [line[6:] for line in answer.text.splitlines() if "{" in line[:8]]
    (last, *_) = reversed(lines) if is_streamed else [answer.text]
    timings = json.loads(last)["timings"]
    assert (timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]) == (
        len((await rendered(http, **prompt))["prompt_token_ids"])
        if "chat" in path
        else len(tokenizer.encode("the fox")),
        4,
    )
    assert timings["prompt_ms"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a+"},
        {"ebnf": 'root ::= "a"'},
        {"grammar": 'root ::= "a"'},
        {"json_schema": '{"type": "object"}'},
        {"json_schema": {"type": "object"}},
        {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
        {"response_format": {"type": "json_schema", "schema": {"type": "object"}}},
        {"structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": "[ ]*"}},
        {"structured_outputs": {"json": {"type": "object"}, "disable_any_whitespace": True}},
        {"guided_json": {"type": "object"}, "guided_whitespace_pattern": "[ ]*"},
    ],
)
async def test_structured_outputs_of_other_servers_reach_the_engine(http, engine, fields):
    await chat(http, **fields, max_tokens=2)
    (start,) = [start for plan in engine.runner.plans for start in plan.start]
    structured = start.sampling.structured
    name = next(iter(fields))
    assert structured.param == name
    if name == "regex":
        assert structured.regex == "a+"
    elif name in ("ebnf", "grammar"):
        assert structured.grammar == fields[name]
    else:
        assert structured.json == '{"type": "object"}'
    whitespace = {"structured_outputs": "", "guided_json": "[ ]*"}.get(name)
    if "whitespace_pattern" in fields.get("structured_outputs", {}):
        whitespace = "[ ]*"
    assert structured.whitespace_pattern == whitespace


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"use_beam_search": True}, "use_beam_search"),
        ("chat/completions", {"stop_regex": "a+"}, "stop_regex"),
        ("chat/completions", {"mirostat": 2}, "mirostat"),
        ("chat/completions", {"functions": [{"name": "f"}]}, "functions"),
        ("chat/completions", {"echo": True}, "echo"),
        ("completions", {"tools": [{"type": "function"}]}, "tools"),
        ("completions", {"repeat_penalty": 1.1}, "repeat_penalty"),
        ("completions", {"length_penalty": 0.5}, "length_penalty"),
        ("responses", {"typical_p": 0.5}, "typical_p"),
        (
            "chat/completions",
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        (
            "chat/completions",
            {"response_format": {"type": "text", "schema": {}}},
            "response_format.schema",
        ),
        ("chat/completions", {"regex": "a", "json_schema": {}}, "regex"),
        ("chat/completions", {"regex": "a", "allowed_token_ids": [3]}, "allowed_token_ids"),
        ("chat/completions", {"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ],
)
async def test_field_that_would_change_the_answer_is_refused_by_name(http, path, fields, param):
    inputs = {
        "chat/completions": {"messages": [USER]},
        "completions": {"prompt": "x"},
        "responses": {"input": "x"},
    }
    answer = await http.post(f"/v1/{path}", json=inputs[path] | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_values_that_ask_for_nothing_are_accepted(http):
    neutral = {
        "use_beam_search": False,
        "length_penalty": 1.0,
        "mirostat": 0,
        "typical_p": 1,
        "functions": [],
        "stop_regex": None,
        "modalities": ["text"],
        "logprobs": False,
        "top_logprobs": 0,
    }
    await chat(http, **neutral)


async def test_unknown_fields_within_objects_are_named_too(http):
    answer = await http.post(
        "/v1/chat/completions",
        json={
            "messages": [USER],
            "max_tokens": 2,
            "stream": True,
            "stream_options": {"include_obfuscation": False},
            "response_format": {"type": "text", "nuance": 5},
        },
    )
    named = answer.headers["x-unknown-fields"]
    assert named == "response_format.nuance, stream_options.include_obfuscation"


async def test_refusals_are_parts_of_an_assistants_message(http):
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    prompt = (await rendered(http, messages=[USER, refusal, USER]))["prompt"]
    assert "<|im_start|>assistant\nno<|im_end|>" in prompt
    body = {"messages": [{"role": "user", "content": refusal["content"]}]}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].type"


async def test_fingerprint_is_that_of_the_engine(http, engine):
    engine.core.capabilities.description["fingerprint"] = "fp_1"
    assert (await chat(http))["system_fingerprint"] == "fp_1"
    assert (await complete(http))["system_fingerprint"] == "fp_1"
