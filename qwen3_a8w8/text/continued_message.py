"""Prompts that end within the last message, so that the answer continues it.

A chat template closes every message. The prompt is what it renders before a mark at the end of the
last one's text. The result is that of `apply_chat_template(continue_final_message=True)` in
transformers, which looks for the text itself; a mark is also found where a template changes the
text.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.chat_template import ChatTemplate
from qwen3_a8w8.text.reasoning import THINK_CLOSE, THINK_OPEN, ReasoningState


def continued_prompt(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any] | None,
) -> tuple[str, ReasoningState]:
    """The prompt, and where in a message its answer begins.

    The answer continues the think block if the last message has only that: content that opens a
    block and doesn't close it, or reasoning and no content.

    Args:
        template: of the model.
        messages: the last one is an assistant's.
        tools: as for `ChatTemplate.render`.
        template_kwargs: likewise.

    Raises:
        InvalidRequestError: see `ChatTemplate.render`; or the last message has no text, or the
            template doesn't show it.
    """
    last = dict(messages[-1])
    mark = f"[{secrets.token_hex(16)}]"
    content, reasoning = last.get("content") or "", last.get("reasoning_content") or ""
    start = content.lstrip()
    if start.startswith(THINK_OPEN) and THINK_CLOSE not in start and not reasoning:
        reasoning, content = start[len(THINK_OPEN) :].lstrip("\n"), ""
    is_thought = bool(reasoning) and not content
    if not reasoning and not content:
        raise InvalidRequestError(
            "continue_final_message is true, but the last message has no text to continue; add "
            "text, or set add_generation_prompt",
            param="continue_final_message",
        )
    if is_thought:
        last |= {"content": "", "reasoning_content": reasoning + mark}
    else:
        last["content"] = content + mark
    text = template.render(
        [*messages[:-1], last],
        tools=tools,
        template_kwargs=template_kwargs,
        add_generation_prompt=False,
    )
    prompt, found, _ = text.rpartition(mark)
    if not found:
        raise InvalidRequestError(
            "continue_final_message is true, but the chat template of this model doesn't show the "
            f"{'reasoning' if is_thought else 'content'} of the last message; leave it out",
            param="continue_final_message",
        )
    return prompt, ReasoningState.REASONING if is_thought else ReasoningState.CONTENT
