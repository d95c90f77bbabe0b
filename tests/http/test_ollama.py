"""Ollama's API over a fake engine; the real client runs in tests/clients."""

import json

import pytest

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
OPTIONS = {"seed": 7, "num_predict": 60}


async def post(http, path, **fields):
    body = {"model": "tiny", "options": OPTIONS} | fields
    answer = await http.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    if fields.get("stream") is False:
        assert answer.headers["content-type"] == "application/json"
        return answer.json()
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_chat_streams_by_default_and_adds_up_to_the_whole(http, say):
    say("<think>\nfox\n</think>\n\nthe dog")
    chunks = await post(http, "chat", messages=[USER])
    assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert "".join(chunk["message"]["content"] for chunk in chunks) == "the dog"
    assert "".join(chunk["message"].get("thinking", "") for chunk in chunks) == "fox"
    whole = await post(http, "chat", messages=[USER], stream=False)
    assert whole["message"] == {"role": "assistant", "content": "the dog", "thinking": "fox"}
    for last in (chunks[-1], whole):
        assert last["model"] == "tiny"
        assert last["done_reason"] == "stop"
        assert last["eval_count"] > 0
        assert last["prompt_eval_count"] > 0
        assert last["total_duration"] >= last["prompt_eval_duration"] > 0


async def test_calls_are_objects_and_come_whole(http, say):
    say(f"yes\n{CALL}")
    options = OPTIONS | {"num_predict": 150}
    chunks = await post(http, "chat", messages=[USER], tools=[TOOL], think=False, options=options)
    (calls,) = [c["message"]["tool_calls"] for c in chunks if "tool_calls" in c["message"]]
    assert [call["function"] for call in calls] == [
        {"index": 0, "name": "now", "arguments": {"a": 1}}
    ]
    history = [USER, {"role": "assistant", "content": "yes", "tool_calls": calls}]
    history.append({"role": "tool", "tool_name": "now", "content": "12"})
    whole = await post(http, "chat", messages=history, tools=[TOOL], stream=False)
    assert whole["done"]


async def test_generate_renders_the_template_unless_raw(http, tokenizer):
    options = {"num_predict": 1, "seed": 7}
    fields = {"prompt": "the fox", "stream": False, "options": options}
    raw = await post(http, "generate", raw=True, **fields)
    assert raw["prompt_eval_count"] == len(tokenizer.encode("the fox"))
    assert raw["done_reason"] == "length"
    rendered = await post(http, "generate", system="be brief", think=False, **fields)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the fox"}]
    chat = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    prompt = (await http.post("/v1/chat/completions/render", json=chat)).json()
    assert rendered["prompt_eval_count"] == prompt["count"]
    assert isinstance(rendered["response"], str)


async def test_generate_has_response_and_thinking(http, say):
    say("<think>\nfox\n</think>\n\nthe dog")
    chunks = await post(http, "generate", prompt="hi", think=True)
    assert "".join(chunk["response"] for chunk in chunks) == "the dog"
    assert "".join(chunk.get("thinking", "") for chunk in chunks) == "fox"
    assert "message" not in chunks[0]


async def test_empty_prompt_says_that_the_model_is_loaded(http):
    for path, body in (("chat", {"messages": []}), ("generate", {})):
        answer = await http.post(f"/api/{path}", json={"model": "tiny", **body})
        assert (answer.json()["done"], answer.json()["done_reason"]) == (True, "load")


async def test_options_and_format_reach_the_engine(http, engine):
    options = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.1,
        "seed": 9,
        "num_predict": 2,
        "stop": "x",
        "presence_penalty": 1,
        "frequency_penalty": 0.5,
        "repeat_penalty": 1.5,
        "num_ctx": 4096,
        "num_gpu": 1,
    }
    schema = {"type": "object"}
    await post(http, "chat", messages=[USER], options=options, format=schema)
    (start,) = [start for plan in engine.runner.plans for start in plan.start]
    sampling = start.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.5)
    assert (sampling.min_p, sampling.seed, sampling.max_tokens) == (0.1, 9, 2)
    assert (sampling.stop, sampling.repetition_penalty) == (("x",), 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, 0.5)
    assert sampling.structured.json == '{"type": "object"}'


async def test_streams_have_the_log_probabilities_of_every_token(http, say):
    say("<think>\nfox\n</think>\n\nthe dog é 😀")
    chunks = await post(http, "chat", messages=[USER], logprobs=True)
    whole = await post(http, "chat", messages=[USER], logprobs=True, stream=False)
    assert len(whole["logprobs"]) == whole["eval_count"]
    assert set(whole["logprobs"][0]) == {"token", "logprob", "bytes", "top_logprobs"}
    assert [one for chunk in chunks for one in chunk.get("logprobs", ())] == whole["logprobs"]


async def test_last_turn_of_the_assistant_is_continued(http, say):
    say(" of France")
    messages = [USER, {"role": "assistant", "content": "The capital"}]
    whole = await post(http, "chat", messages=messages, stream=False)
    assert whole["message"]["content"] == " of France"
    chat = {"messages": messages, "continue_final_message": True}
    prompt = (await http.post("/v1/chat/completions/render", json=chat)).json()
    assert whole["prompt_eval_count"] == prompt["count"]


async def test_models_are_listed_and_shown(http, service):
    (model,) = (await http.get("/api/tags")).json()["models"]
    assert (model["name"], model["details"]["quantization_level"]) == ("tiny", "A8W8")
    (loaded,) = (await http.get("/api/ps")).json()["models"]
    assert loaded["context_length"] == 256
    for body in ({"model": "tiny"}, {"name": "tiny:latest"}):
        shown = (await http.post("/api/show", json=body)).json()
        assert shown["template"] == service.prompts.template_source
        assert shown["model_info"]["qwen3.context_length"] == 256
        assert "tools" in shown["capabilities"]
    version = (await http.get("/api/version")).json()["version"]
    assert [part.isdecimal() for part in version.split(".")] == [True] * 3
    answer = await post(http, "chat", model="tiny:latest", messages=[USER], stream=False)
    assert answer["model"] == "tiny:latest"


@pytest.mark.parametrize(
    ("path", "fields", "place"),
    [
        ("chat", {"messages": 5}, "messages"),
        ("chat", {"messages": [{"role": "robot"}]}, "messages[0].role"),
        ("chat", {"messages": [USER | {"images": ["x"]}]}, "messages[0].images"),
        ("chat", {"messages": [USER], "think": 5}, "think"),
        ("chat", {"messages": [USER], "format": 5}, "format"),
        ("chat", {"messages": [USER], "tools": [5]}, "tools[0]"),
        ("chat", {"messages": [USER], "options": {"num_predict": "x"}}, "options.num_predict"),
        ("chat", {"messages": [USER], "options": {"num_predict": 0}}, "options.num_predict"),
        ("chat", {"messages": [USER], "options": {"temperature": -1}}, "options.temperature"),
        ("chat", {"messages": [USER], "options": {"repeat_penalty": 99}}, "options.repeat_penalty"),
        ("chat", {"messages": [USER], "options": {"mirostat": 2}}, "options.mirostat"),
        ("chat", {"messages": [USER], "options": {"stop": 5}}, "options.stop"),
        ("generate", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("generate", {"prompt": "x", "template": "y"}, "template"),
        ("generate", {"prompt": "x", "context": [1]}, "context"),
        ("generate", {"prompt": "x", "images": ["y"]}, "images"),
    ],
)
async def test_bad_field_is_named_in_ollamas_format(http, path, fields, place):
    answer = await http.post(f"/api/{path}", json={"model": "tiny"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"].startswith(place)


async def test_errors_have_ollamas_format(http, engine):
    answer = await http.post("/api/chat", json={"model": "other", "messages": [USER]})
    assert answer.status_code == 404
    assert "'other'" in answer.json()["error"]
    for path in ("embed", "embeddings", "pull", "push", "create", "copy", "delete"):
        answer = await http.post(f"/api/{path}", json={"model": "tiny"})
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
    engine.runner.fail_at_step = len(engine.runner.plans) + 2
    options = {"num_predict": 50, "seed": 1}
    chunks = await post(http, "generate", prompt="x", raw=True, options=options)
    assert isinstance(chunks[-1]["error"], str)
