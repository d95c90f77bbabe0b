"""Converts the prompts of requests to token ids.

Owns tokenizer and chat template of one checkpoint. Long prompts are encoded on separate
threads, so that they don't delay streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.continued_message import continued_prompt
from qwen3_a8w8.text.reasoning import ReasoningState, initial_state
from qwen3_a8w8.text.tokenizer import Tokenizer

INLINE_CHARS = 8192
"""Prompts up to this length are encoded inline: that takes less time than a thread hand-off."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        text: the rendered prompt.
        token_ids: its token ids.
        state: where in a message the answer begins.
    """

    text: str
    token_ids: tuple[int, ...]
    state: ReasoningState


class PromptReader:
    """Encodes prompts for one model.

    Attributes:
        tokenizer: of the checkpoint.
        template_source: text of the chat template, or None if there is none.
    """

    def __init__(self, model_name: str, directory: Path) -> None:
        """Loads tokenizer and chat template of a checkpoint.

        Args:
            model_name: for messages.
            directory: of the checkpoint.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        self.tokenizer = Tokenizer.from_directory(directory)
        self._template = ChatTemplate.from_directory(
            directory, special_tokens=self.tokenizer.special_tokens
        )
        self.template_source = None if self._template is None else self._template.source
        self._model_name = model_name
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="prompts")

    async def encode(self, prompt: str | Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Token ids of a text; ids are returned unchanged.

        Args:
            prompt: text or ids.
            max_tokens: rejects texts far above it; the engine's admission checks the exact limit.

        Raises:
            ContextLengthError: the text has far more.
            InvalidRequestError: the text isn't valid Unicode.
        """
        if not isinstance(prompt, str):
            return tuple(prompt)
        text = prompt
        return await self._run(
            len(text), lambda: tuple(self.tokenizer.encode_prompt(text, max_tokens))
        )

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> ChatPrompt:
        """Renders and encodes a conversation.

        Args:
            messages: role, content ... as plain JSON values.
            max_tokens: see `encode`.
            tools: function definitions in OpenAI's format, or None.
            template_kwargs: further variables of the template.
            add_generation_prompt: end with the start of an assistant message.
            continue_final_message: end within the last message, an assistant's.

        Raises:
            ContextLengthError: the prompt is far longer.
            InvalidRequestError: there is no template, or it rejects the messages.
        """
        template = self._template
        if template is None:
            raise InvalidRequestError(
                f"the model {self._model_name!r} has no chat template; use text completions "
                "instead",
                param="messages",
            )

        def encode() -> ChatPrompt:
            if continue_final_message:
                text, state = continued_prompt(
                    template, messages, tools=tools, template_kwargs=template_kwargs
                )
            else:
                text = template.render(
                    messages,
                    tools=tools,
                    template_kwargs=template_kwargs,
                    add_generation_prompt=add_generation_prompt,
                )
                state = initial_state(text)
            return ChatPrompt(text, tuple(self.tokenizer.encode_prompt(text, max_tokens)), state)

        return await self._run(_num_chars(messages) + _num_chars(tools), encode)

    async def _run(self, num_chars: int, encode: Callable[[], _T]) -> _T:
        if num_chars <= INLINE_CHARS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._threads, encode)


def _num_chars(value: object) -> int:
    """Number of characters of text in a JSON value."""
    total, todo = 0, [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            todo += (*item.keys(), *item.values())
        elif isinstance(item, Sequence):
            todo += item
    return total
