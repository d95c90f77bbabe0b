"""From a request's `thinking_budget` to the limit that the engine keeps."""

from __future__ import annotations

from qwen3_a8w8.engine.sampling_params import ThinkingLimit
from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.text.reasoning import THINK_CLOSE, THINK_OPEN, ReasoningState
from qwen3_a8w8.text.tokenizer import Tokenizer

THINK_END = f"\n{THINK_CLOSE}\n\n"
"""How Qwen3 ends a think block before its answer."""


def think_ids(tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Ids of the tags that open and close a think block, where a model has such tokens."""
    open_id, close_id = tokenizer.token_id(THINK_OPEN), tokenizer.token_id(THINK_CLOSE)
    return None if open_id is None or close_id is None else (open_id, close_id)


def thinking_limit(
    tokenizer: Tokenizer, num_tokens: int, state: ReasoningState
) -> ThinkingLimit | None:
    """The limit of one answer.

    Args:
        tokenizer: of the model.
        num_tokens: most tokens before the block is closed.
        state: in which the prompt leaves the answer.

    Returns:
        None where the prompt has closed the block: there is nothing to limit.

    Raises:
        InvalidRequestError: the model has no tags for thinking.
    """
    if state in (ReasoningState.CONTENT, ReasoningState.AFTER_REASONING):
        return None
    ids = think_ids(tokenizer)
    if ids is None:
        raise InvalidRequestError(
            f"thinking_budget is {num_tokens}, but the model has no tokens {THINK_OPEN} and "
            f"{THINK_CLOSE}; leave it out",
            param="thinking_budget",
        )
    is_to_be_opened = state is ReasoningState.UNDECIDED
    return ThinkingLimit(
        # A block that the model opens has the opening tag in any case.
        num_tokens=max(num_tokens, 1) if is_to_be_opened else num_tokens,
        end_ids=tuple(tokenizer.encode(THINK_END)),
        close_id=ids[1],
        open_id=ids[0] if is_to_be_opened else None,
    )
