"""Tokenize, detokenize and render."""

import pytest

USER = {"role": "user", "content": "the fox 你好 🙂"}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


async def test_tokenize_text_gives_the_tokenizers_ids(http, tokenizer):
    body = {"prompt": USER["content"], "return_token_strs": True}
    answer = (await http.post("/tokenize", json=body)).json()
    ids = tokenizer.encode(USER["content"])
    assert answer == {
        "count": len(ids),
        "max_model_len": 256,
        "tokens": ids,
        "token_strs": [tokenizer.token_text(i) for i in ids],
    }


async def test_detokenize_gives_the_text_back_with_special_tokens(http, tokenizer):
    text = "<|im_start|>" + USER["content"]
    answer = await http.post("/detokenize", json={"tokens": tokenizer.encode(text)})
    assert answer.json() == {"prompt": text}


async def test_render_tokenize_and_a_completion_agree(http, tokenizer):
    request = {"messages": [USER], "tools": [TOOL], "reasoning_effort": "none"}
    render = (await http.post("/v1/chat/completions/render", json=request)).json()
    assert render["prompt"].endswith("<think>\n\n</think>\n\n")
    assert '"name": "now"' in render["prompt"]
    assert render["prompt_token_ids"] == tokenizer.encode(render["prompt"])
    chat = {"messages": [USER], "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}}
    tokenized = (await http.post("/tokenize", json=chat)).json()
    assert tokenized["tokens"] == render["prompt_token_ids"]
    assert tokenized["count"] == render["count"]
    answer = await http.post("/v1/chat/completions", json=request | {"max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] == render["count"]


async def test_tokenize_without_generation_prompt_ends_with_the_last_message(http, tokenizer):
    body = {"messages": [USER], "add_generation_prompt": False}
    ids = (await http.post("/tokenize", json=body)).json()["tokens"]
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("🙂<|im_end|>\n")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [USER]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "the fox " * 12_000}, "prompt"),
        ("/tokenize", {"prompt": "x" * 8_192}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [5, 100_000]}, "tokens[1]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/v1/chat/completions/render", {"messages": []}, "messages"),
    ],
)
async def test_bad_request_gives_400_and_names_the_field(wide_http, path, body, param):
    answer = await wide_http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/chat/completions/render"])
async def test_unknown_model_gives_404(http, path):
    body = {"model": "other", "tokens": [1]}
    body |= {"prompt": "x"} if path == "/tokenize" else {"messages": [USER]}
    assert (await http.post(path, json=body)).status_code == 404
