"""Log-probabilities of prompts over HTTP; the fake model's are minus the position."""

import pytest

PROMPT = "the quick 🙂 fox"


async def complete(http, **fields):
    body = {"prompt": PROMPT, "max_tokens": 2, "seed": 7, "ignore_eos": True} | fields
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


async def test_completion_has_an_entry_per_token_of_the_prompt(http, tokenizer):
    ids = tokenizer.encode(PROMPT)
    for choice in await complete(http, prompt_logprobs=1, n=2):
        first, *entries = choice["prompt_logprobs"]
        assert first is None
        assert entries == [
            {
                str(token_id): {
                    "logprob": -float(position),
                    "rank": 1,
                    "decoded_token": tokenizer.token_text(token_id),
                }
            }
            for position, token_id in enumerate(ids)
            if position
        ]


async def test_rank_of_a_token_that_is_not_among_the_likely_ones_is_null(http):
    (choice,) = await complete(http, prompt_logprobs=0)
    (entry,) = choice["prompt_logprobs"][1].values()
    assert entry["rank"] is None


async def test_echo_with_logprobs_joins_prompt_and_answer(http, tokenizer):
    ids = tokenizer.encode(PROMPT)
    for choice in await complete(http, echo=True, logprobs=1, n=2):
        logprobs = choice["logprobs"]
        assert choice["text"].startswith(PROMPT)
        assert logprobs["tokens"][: len(ids)] == [tokenizer.token_text(i) for i in ids]
        expected = [None, *(-float(p) for p in range(1, len(ids))), -0.5, -0.5]
        assert logprobs["token_logprobs"] == expected
        assert logprobs["top_logprobs"][0] is None
        assert len(logprobs["text_offset"]) == len(ids) + 2
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        assert logprobs["text_offset"][len(ids)] == len(PROMPT)
        assert "prompt_logprobs" not in choice


async def test_chat_has_them_beside_its_choices(http):
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])


async def test_batch_has_them_too(http):
    body = {"prompt": ["the fox"] * 16, "max_tokens": 2, "prompt_logprobs": 0}
    answer = await http.post("/v1/batch_generate", json=body)
    assert all(choice["prompt_logprobs"][0] is None for choice in answer.json()["choices"])
    assert all(len(choice["prompt_logprobs"]) > 1 for choice in answer.json()["choices"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
    ],
)
async def test_what_cannot_be_returned_gives_400(http, fields, param):
    answer = await http.post("/v1/completions", json={"prompt": "x"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
