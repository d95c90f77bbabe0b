"""Prompts: exact lengths, reproducible, and files by the rules that everybody uses."""

import json

import pytest

from qwen3_a8w8.bench.serve.dataset import load_requests
from qwen3_a8w8.bench.serve.dataset_settings import DatasetSettings
from qwen3_a8w8.bench.serve.text_codec import LocalCodec, WordCodec
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def codec():
    from qwen3_a8w8.checkpoint.resolve import resolve_model

    return LocalCodec(resolve_model("demo"), "demo")


@pytest.fixture(scope="module")
def demo_tokenizer(codec):
    return Tokenizer.from_directory(codec.directory)


async def load(codec, *, is_chat=False, **settings):
    return await load_requests(DatasetSettings(**settings), codec, is_chat=is_chat)


async def test_random_prompts_have_exactly_their_lengths(codec, demo_tokenizer):
    requests = await load(codec, num_prompts=30, input_len=40, output_len=9)
    assert {request.output_len for request in requests} == {9}
    # Counted by the model's own tokenizer, as the server will.
    assert {len(demo_tokenizer.encode(request.prompt)) for request in requests} == {40}
    assert {request.prompt_len for request in requests} == {40}
    assert len({request.prompt for request in requests}) == 30


async def test_range_ratio_spreads_lengths_evenly_around_their_mean(codec):
    requests = await load(
        WordCodec(), num_prompts=2000, input_len=10, output_len=100, random_range_ratio="0.2"
    )
    inputs = [request.prompt_len for request in requests]
    outputs = [request.output_len for request in requests]
    assert (min(inputs), max(inputs)) == (8, 12)
    assert sum(inputs) / 2000 == pytest.approx(10, abs=0.2)
    assert (min(outputs), max(outputs)) == (80, 120)
    assert sum(outputs) / 2000 == pytest.approx(100, abs=1.5)


async def test_random_prefix_begins_every_prompt(codec, demo_tokenizer):
    requests = await load(codec, num_prompts=5, input_len=20, random_prefix_len=12)
    ids = [demo_tokenizer.encode(request.prompt) for request in requests]
    assert {len(own) for own in ids} == {32}
    assert len({tuple(own[:11]) for own in ids}) == 1  # the last of the prefix may join the next
    assert len({tuple(own[12:]) for own in ids}) == 5


async def test_seed_decides_the_prompts(codec):
    one, same, other = [
        await load(codec, num_prompts=3, input_len=8, seed=seed) for seed in (4, 4, 5)
    ]
    assert one == same
    assert one != other


async def test_without_a_tokenizer_a_word_counts_as_a_token():
    (request,) = await load(WordCodec(), num_prompts=1, input_len=7)
    assert len(request.prompt.split()) == request.prompt_len == 7


def sharegpt(tmp_path, pairs):
    path = tmp_path / "sharegpt.json"
    entries = [
        {"conversations": [{"from": "human", "value": a}, {"from": "gpt", "value": b}]}
        for a, b in pairs
    ]
    path.write_text(json.dumps([*entries, {"conversations": [{"value": "alone"}]}, {"id": 1}]))
    return path


def words(count):
    return " ".join(["word"] * count)


async def test_sharegpt_takes_first_turns_within_the_bounds(tmp_path):
    good = [(words(4), words(4)), (words(1024), words(1024))]
    bad = [
        (words(3), words(9)),
        (words(9), words(3)),
        (words(1025), words(9)),
        (words(9), words(2040)),
    ]
    path = sharegpt(tmp_path, [*bad[:2], *good, *bad[2:]])
    found = await load(
        WordCodec(), dataset_name="sharegpt", dataset_path=path, num_prompts=9, no_oversample=True,
        disable_shuffle=True,
    )  # fmt: skip
    assert [(one.prompt_len, one.output_len) for one in found] == [(4, 4), (1024, 1024)]


async def test_sharegpt_with_a_fixed_output_length_takes_short_answers(tmp_path):
    path = sharegpt(tmp_path, [(words(9), words(1))])
    found = await load(
        WordCodec(), dataset_name="sharegpt", dataset_path=path, num_prompts=3, output_len=17
    )
    assert [one.output_len for one in found] == [17] * 3  # oversampled


async def test_file_is_shuffled_by_the_seed(tmp_path):
    path = sharegpt(tmp_path, [(words(n), words(8)) for n in range(4, 40)])

    async def lengths(**settings):
        found = await load(
            WordCodec(), dataset_name="sharegpt", dataset_path=path, num_prompts=36, **settings
        )
        return [one.prompt_len for one in found]

    assert await lengths(disable_shuffle=True) == list(range(4, 40))
    assert await lengths(seed=1) == await lengths(seed=1) != await lengths(seed=2)
    assert sorted(await lengths(seed=1)) == list(range(4, 40))


def custom(tmp_path, *lines):
    path = tmp_path / "custom.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


async def test_custom_prompts_are_user_messages_for_the_text_api_only(tmp_path, codec):
    path = custom(tmp_path, {"prompt": "hello", "output_tokens": 5})
    settings = {"dataset_name": "custom", "dataset_path": path, "num_prompts": 1}
    (templated,) = await load(codec, **settings)
    assert templated.output_len == 5
    assert templated.prompt.startswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant")
    for options in ({"is_chat": True}, {"skip_chat_template": True}):
        (plain,) = await load(codec, **settings, **options)
        assert plain.prompt == "hello"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a"}, "`output_tokens` is None for 'a', expected a positive integer"),
        ({"prompt": "a", "output_tokens": 0}, "expected a positive integer"),
        ({"text": "a"}, "expected lines with a text `prompt`"),
        ([], "expected lines with a text `prompt`"),
    ],
)
async def test_custom_line_that_lacks_something_is_named(tmp_path, codec, line, message):
    path = custom(tmp_path, line)
    with pytest.raises(ConfigError, match=message):
        await load(codec, dataset_name="custom", dataset_path=path, skip_chat_template=True)


async def test_custom_prompts_without_a_template_need_an_option(tmp_path):
    path = custom(tmp_path, {"prompt": "a", "output_tokens": 1})
    with pytest.raises(ConfigError, match="--skip-chat-template, or --backend openai-chat"):
        await load(WordCodec(), dataset_name="custom", dataset_path=path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sharegpt", "{", "can't be read"),
        ("sharegpt", "{}", "expected a list"),
        ("sharegpt", '[{"conversations": [1, 2]}]', "not in ShareGPT's format"),
        ("sharegpt", "[]", "no usable prompt"),
        ("custom", "{", "can't be read"),
        ("custom", "\n", "no usable prompt"),
    ],
)
async def test_damaged_file_is_an_error(tmp_path, name, content, message):
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        await load(WordCodec(), dataset_name=name, dataset_path=path, skip_chat_template=True)
