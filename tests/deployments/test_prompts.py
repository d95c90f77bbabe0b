"""From prompts to token ids: short ones at once, long ones on threads."""

import asyncio
import threading

import pytest

from deployments.ingress.prompts import INLINE_CHARS, PromptReader
from qwen3_a8w8.errors import ContextLengthError, InvalidRequestError

LIMIT = 10**9


@pytest.fixture
def reader(tokenizer_dir):
    return PromptReader("tiny", tokenizer_dir)


@pytest.fixture
def threads(reader, monkeypatch):
    """Names of the threads that encode."""
    names = []
    encode = reader.tokenizer.encode_prompt

    def watched(text, max_tokens):
        names.append(threading.current_thread().name)
        return encode(text, max_tokens)

    monkeypatch.setattr(reader.tokenizer, "encode_prompt", watched)
    return names


async def test_short_text_is_read_at_once(reader, threads, tokenizer):
    assert await reader.encode("the fox", LIMIT) == tuple(tokenizer.encode("the fox"))
    assert threads == [threading.current_thread().name]


async def test_long_text_is_read_on_a_thread_with_the_same_result(reader, threads, tokenizer):
    text = "the fox and 你好 " * INLINE_CHARS
    assert await reader.encode(text, LIMIT) == tuple(tokenizer.encode(text))
    assert threads[0].startswith("prompts")


async def test_loop_continues_while_a_long_text_is_encoded(reader, tokenizer, monkeypatch):
    may_end = threading.Event()

    def waits_for_the_loop(text, max_tokens):
        assert may_end.wait(30)
        return [1]

    monkeypatch.setattr(reader.tokenizer, "encode_prompt", waits_for_the_loop)
    reading = asyncio.create_task(reader.encode("x" * (INLINE_CHARS + 1), LIMIT))
    await asyncio.sleep(0)
    may_end.set()  # nobody would come here if the loop stood still
    assert await reading == (1,)


async def test_long_conversation_is_read_on_a_thread(reader, threads):
    messages = [{"role": "user", "content": "fox " * 10}] * (INLINE_CHARS // 20)
    chat = await reader.chat(messages, LIMIT)
    assert chat.text.count("<|im_start|>") == len(messages) + 1
    assert threads[0].startswith("prompts")


async def test_text_far_over_the_limit_is_refused_before_it_is_read_to_its_end(reader, tokenizer):
    with pytest.raises(ContextLengthError, match="the limit is 100"):
        await reader.encode("the fox " * 2**17, 100)


async def test_ids_are_taken_as_they_are(reader):
    assert await reader.encode([5, 6], LIMIT) == (5, 6)


async def test_lone_surrogate_is_an_invalid_request(reader):
    with pytest.raises(InvalidRequestError, match="surrogate"):
        await reader.encode("x\ud800", LIMIT)
