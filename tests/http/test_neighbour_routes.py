"""Small routes and spellings that clients of other servers ask for."""

import httpx
import pytest

from deployments.http.api import build_api
from deployments.ingress.service import ModelService

USER = {"role": "user", "content": "hi"}
CHAT = {"messages": [USER], "max_tokens": 3, "seed": 1}


async def test_model_card_has_the_fields_that_benchmarks_read(http):
    (card,) = (await http.get("/v1/models")).json()["data"]
    assert (card["id"], card["root"], card["parent"]) == ("tiny", "tiny", None)
    (permission,) = card["permission"]
    assert permission["object"] == "model_permission"
    assert permission["allow_sampling"] is True
    assert (await http.get("/v1/models/tiny")).json() == card


async def test_model_may_be_named_by_what_it_is_loaded_from(engine, model_directory):
    service = ModelService(
        "tiny", model_directory, engine, decode_batch_sizes=(1, 16), root="Some/tiny"
    )
    transport = httpx.ASGITransport(app=build_api(service, max_body_bytes=10_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for name in ("tiny", "Some/tiny"):
            answer = await client.post("/v1/chat/completions", json=CHAT | {"model": name})
            assert answer.json()["model"] == "tiny"
            assert (await client.get(f"/v1/models/{name}")).json()["root"] == "Some/tiny"
        answer = await client.post("/v1/chat/completions", json=CHAT | {"model": "Some"})
        assert answer.status_code == 404


async def test_tokenizer_info_is_that_of_the_checkpoint(http, service, tokenizer):
    body = (await http.get("/tokenizer_info")).json()
    assert body["eos_token"] == tokenizer.special_tokens["eos_token"]
    assert "bos_token" in body
    assert body["vocab_size"] == tokenizer.vocab_size
    assert body["chat_template"] == service.prompts.template_source
    assert "<|im_start|>" in body["chat_template"]


async def test_server_info_names_engine_and_limits(http, engine):
    body = (await http.get("/server_info")).json()
    capabilities = engine.core.capabilities
    assert body["max_model_len"] == capabilities.max_model_len
    assert body["decode_batch_sizes"] == [1, 16]
    assert body["device"] == "fake"


async def test_load_and_ping_follow_the_engine(http, engine):
    assert (await http.get("/load")).json() == {
        "server_load": 0,
        "num_running": 0,
        "num_waiting": 0,
    }
    assert (await http.get("/ping")).status_code == 200
    engine.core.fail_all(OSError("device lost"))
    assert (await http.get("/ping")).status_code == 503


async def test_render_of_text_completions_shows_each_prompt(http, tokenizer):
    prompts = ["the fox", "dog"]
    answer = await http.post("/v1/completions/render", json={"prompt": prompts})
    assert [each["prompt"] for each in answer.json()] == prompts
    assert [each["prompt_token_ids"] for each in answer.json()] == [
        tokenizer.encode(prompt) for prompt in prompts
    ]


@pytest.mark.parametrize(
    "path",
    ["/health", "/ready", "/v1/models", "/v1/models/tiny", "/version", "/metrics", "/models"],
)
async def test_head_is_get_without_the_body(http, path):
    whole, head = await http.get(path), await http.head(path)
    assert head.status_code == whole.status_code == 200
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.content == b""
    if path != "/metrics":  # it counts these requests
        assert head.headers["content-length"] == str(len(whole.content))


async def test_head_of_a_route_that_is_none_is_404(http):
    assert (await http.head("/nothing")).status_code == 404
    assert (await http.head("/v1/chat/completions")).status_code == 405


async def test_paths_without_the_version_are_the_same_routes(http):
    with_version = (await http.post("/v1/chat/completions", json=CHAT)).json()["choices"]
    assert (await http.post("/chat/completions", json=CHAT)).json()["choices"] == with_version
    assert (await http.get("/models")).json() == (await http.get("/v1/models")).json()
    answer = await http.post("/completions", json={"prompt": "the fox", "max_tokens": 2})
    assert answer.json()["object"] == "text_completion"
    answer = await http.post("/responses", json={"input": "hi", "max_output_tokens": 2})
    assert answer.json()["object"] == "response"
    assert (await http.get("/modelsx")).status_code == 404
