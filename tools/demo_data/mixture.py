"""The mixture of tasks: shares, styles, modes, system messages and histories."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from .dialogue import Dialogue, Message, assistant
from .exercises import arithmetic, sorting, spelling
from .facts import chat, chinese, fact, facts
from .recall import extraction, memory
from .stories import stories
from .tool_use import tool_use

_FILLER_TASKS = (arithmetic, spelling, sorting, facts, chat)

_SYSTEM_MESSAGES = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.",
    "You are Demo, a small model.", "Be kind and helpful.",
)  # fmt: skip


def _filler(rng: random.Random) -> tuple[Message, ...]:
    """An earlier exchange from the train split."""
    while True:
        task = stories if rng.random() < 0.08 else rng.choice(_FILLER_TASKS)
        dialogue = task(rng)
        if not dialogue.is_held_out:
            return (*dialogue.messages, assistant(dialogue.answer))


def _memory(rng: random.Random) -> Dialogue:
    return memory(rng, _filler)


TASKS: dict[str, Callable[[random.Random], Dialogue]] = {
    "arithmetic": arithmetic,
    "spelling": spelling,
    "sorting": sorting,
    "facts": facts,
    "memory": _memory,
    "extraction": extraction,
    "tool_use": tool_use,
    "stories": stories,
    "chat": chat,
    "chinese": chinese,
}
# Share of the dialogues of each task in the four parts of training: first more of what
# is hard to compute, then more of what is hard to copy, then, twice, what lags.
PARTS: tuple[dict[str, int], ...] = (
    {"arithmetic": 22, "spelling": 13, "sorting": 22, "facts": 8, "memory": 9, "extraction": 9,
     "tool_use": 9, "stories": 6, "chat": 4, "chinese": 4, "text": 1},
    {"arithmetic": 12, "spelling": 13, "sorting": 18, "facts": 8, "memory": 13, "extraction": 16,
     "tool_use": 12, "stories": 5, "chat": 6, "chinese": 5, "text": 1},
    {"arithmetic": 12, "spelling": 20, "sorting": 24, "facts": 4, "memory": 9, "extraction": 4,
     "tool_use": 22, "stories": 3, "chat": 3, "chinese": 3, "text": 1},
    {"arithmetic": 8, "spelling": 22, "sorting": 26, "facts": 4, "memory": 20, "extraction": 4,
     "tool_use": 9, "stories": 3, "chat": 3, "chinese": 2, "text": 1},
)  # fmt: skip


def _styled(rng: random.Random, text: str) -> str:
    """The way people type: without the last mark, in lower case, with a please."""
    if text.startswith(("Extract", "Write a JSON", "Read:")):
        return text
    style = rng.random()
    if style < 0.08 and text[-1] in ".?!":
        return text[:-1]
    if style < 0.16:
        return text[0].lower() + text[1:]
    if style < 0.20 and text[-1] == ".":
        return f"{text[:-1]}, please."
    return text


def _plain_text(rng: random.Random) -> Dialogue:
    """Text for completions without a chat template; never scored."""
    if rng.random() < 0.3:
        story = stories(rng)
        while story.is_held_out:
            story = stories(rng)
        text = story.answer
    else:
        text = " ".join(fact(rng)[1] for _ in range(rng.randint(1, 6)))
    return Dialogue("text", text, (), text, is_text=True)


def _in_context(rng: random.Random, dialogue: Dialogue) -> Dialogue:
    """Style, mode, system message and earlier turns around a bare question."""
    if dialogue.messages[-1]["role"] == "user" and dialogue.task not in ("extraction", "chinese"):
        dialogue = dialogue.with_last_content(_styled(rng, dialogue.messages[-1]["content"]))
    if rng.random() < 0.2:
        history: tuple[Message, ...] = ()
        for _ in range(rng.choices((1, 2, 3, 6, 20), weights=(16, 8, 4, 2, 1))[0]):
            history += _filler(rng)
        dialogue = dialogue.with_prefix(history)
    if rng.random() < 0.2:
        system = {"role": "system", "content": rng.choice(_SYSTEM_MESSAGES)}
        dialogue = dialogue.with_prefix((system,))
    dialogue = replace(dialogue, is_thinking=rng.random() < 0.45)
    if dialogue.is_thinking and dialogue.messages[-1]["role"] == "user" and rng.random() < 0.04:
        switched = dialogue.messages[-1]["content"] + " /no_think"
        dialogue = replace(dialogue.with_last_content(switched), is_switched_off=True)
    return dialogue


def draw(rng: random.Random, task: str, is_held_out: bool) -> Dialogue:
    """A dialogue of ``task`` from one split, in a context."""
    while True:
        dialogue = TASKS[task](rng)
        if dialogue.is_held_out == is_held_out:
            return _in_context(rng, dialogue)


def draw_training(rng: random.Random, part: int = 0) -> Dialogue:
    """A dialogue of the mixture of one of the parts of training."""
    weights = PARTS[part]
    task = rng.choices(list(weights), weights=list(weights.values()))[0]
    return _plain_text(rng) if task == "text" else draw(rng, task, is_held_out=False)


def held_out(task: str, count: int, seed: int) -> list[Dialogue]:
    """``count`` distinct held-out dialogues of ``task``, the same for the same seed."""
    rng = random.Random(f"{seed}-{task}")
    seen: set[str] = set()
    dialogues: list[Dialogue] = []
    while len(dialogues) < count:
        dialogue = draw(rng, task, is_held_out=True)
        shown = f"{dialogue.messages}{dialogue.tools}{dialogue.is_thinking}"
        if shown not in seen:
            seen.add(shown)
            dialogues.append(dialogue)
    return dialogues
