"""One dialogue of the demo corpus, and the split into train and held-out.

Knows nothing of tasks or tokens. A task makes a :class:`Dialogue`; its ``key``
names what is asked, and the hash of the key alone decides the split, so that a
held-out question is unseen in training in both modes, with every system
message and after every history.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

Message = dict[str, Any]

HELD_OUT_ONE_IN = 8


def user(content: str) -> Message:
    """A user turn."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """An earlier assistant turn, as a client sends it back."""
    return {"role": "assistant", "content": content}


@dataclass(frozen=True)
class Dialogue:
    """A prompt in messages and the one right assistant turn that follows.

    Attributes:
        task: Name of the task, a key of ``TASKS``.
        key: What is asked, without style, history or mode; decides the split.
        messages: The prompt; ends with a user or tool turn.
        answer: Content of the assistant turn after the thinking block.
        thinking: Content of the thinking block in thinking mode.
        tools: OpenAI tool definitions for the system section.
        is_thinking: Whether the turn is generated in thinking mode.
        is_switched_off: Thinking mode, but the user wrote ``/no_think``: the
            turn starts with an empty thinking block of the model's own.
        is_pinned: Never held out (a greeting that everybody types).
        is_text: Plain text without chat turns; ``answer`` is the text.
    """

    task: str
    key: str
    messages: tuple[Message, ...]
    answer: str
    thinking: str = ""
    tools: tuple[dict[str, Any], ...] = field(default=())
    is_thinking: bool = False
    is_switched_off: bool = False
    is_pinned: bool = False
    is_text: bool = False

    @property
    def is_held_out(self) -> bool:
        """Whether this question belongs to the held-out split."""
        if self.is_pinned or self.is_text:
            return False
        digest = hashlib.sha256(f"{self.task}|{self.key}".encode()).digest()
        return digest[0] % HELD_OUT_ONE_IN == 0

    @property
    def completion(self) -> str:
        """What the model must emit after the generation prompt, without the end token."""
        if self.is_switched_off:
            return f"<think>\n\n</think>\n\n{self.answer}"
        if self.is_thinking:
            return f"<think>\n{self.thinking}\n</think>\n\n{self.answer}"
        return self.answer

    def with_prefix(self, prefix: tuple[Message, ...]) -> Dialogue:
        """The same question after earlier turns or a system message."""
        return replace(self, messages=(*prefix, *self.messages))

    def with_last_content(self, content: str) -> Dialogue:
        """The same question in another style."""
        last = {**self.messages[-1], "content": content}
        return replace(self, messages=(*self.messages[:-1], last))
