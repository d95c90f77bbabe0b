"""What the samples of a step's result mean for its sequences.

A result that doesn't fit its plan is a defect of the runner, and said as one.
"""

from __future__ import annotations

from qwen3_a8w8.engine.draft import ScheduledStep
from qwen3_a8w8.engine.plan import PromptToken, SampledToken, StepResult, TokenLogprobs
from qwen3_a8w8.engine.request import FinishReason, TokenEvent
from qwen3_a8w8.engine.sequence import Sequence
from qwen3_a8w8.errors import EngineDeadError, InvalidRequestError


def samples_by_sequence(step: ScheduledStep, result: StepResult) -> dict[int, list[SampledToken]]:
    """The samples of a result, in the order of the step's work.

    Raises:
        EngineDeadError: samples are missing, or there are more than were asked for.
    """
    most = {work.seq.seq_id: 1 + work.num_drafts for work in step.work if work.is_sampled}
    sampled: dict[int, list[SampledToken]] = {}
    for token in result.sampled:
        sampled.setdefault(token.seq_id, []).append(token)
    if sampled.keys() != most.keys():
        raise EngineDeadError(
            f"step {result.step_id} has samples for sequences {sorted(sampled)}, expected "
            f"{sorted(most)}"
        )
    for seq_id, tokens in sampled.items():
        if len(tokens) > most[seq_id]:
            raise EngineDeadError(
                f"step {result.step_id} has {len(tokens)} samples for sequence {seq_id}, expected "
                f"at most {most[seq_id]}"
            )
    return {seq_id: sampled[seq_id] for seq_id in most}


def append_samples(seq: Sequence, tokens: list[SampledToken]) -> TokenEvent:
    """Takes a step's samples into their sequence.

    Returns:
        The news; its `finish_reason` says that the sequence is to end here.

    Raises:
        EngineDeadError: a sample isn't for the position that comes next.
    """
    is_first = seq.num_output_tokens == 0
    error: InvalidRequestError | None = None
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs | None] = []
    finish_reason: FinishReason | None = None
    for token in tokens:
        if token.position != len(seq.token_ids):
            raise EngineDeadError(
                f"sequence {seq.seq_id} got a sample for position {token.position}, expected "
                f"{len(seq.token_ids)}"
            )
        if token.error is not None:
            error, finish_reason = _form_error(seq, token.error), "error"
            break
        token_ids.append(token.token_id)
        logprobs.append(token.logprobs)
        finish_reason = seq.append(token.token_id)
        if finish_reason is not None:
            break  # what kept drafts give beyond the end is dropped
    return TokenEvent(
        seq_id=seq.seq_id,
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        finish_reason=finish_reason,
        stop_token_id=token_ids[-1] if finish_reason == "stop" else None,
        num_cached_tokens=seq.num_cached_tokens,
        error=error,
        prompt_tokens=_prompt_tokens(seq) if is_first else (),
    )


def _prompt_tokens(seq: Sequence) -> tuple[PromptToken, ...]:
    return tuple(seq.prompt_tokens[position] for position in sorted(seq.prompt_tokens))


def _form_error(seq: Sequence, message: str) -> InvalidRequestError:
    """Why an answer can't be gone on with in the form that was asked for."""
    structured = seq.sampling.structured
    param = None if structured is None else structured.param
    return InvalidRequestError(
        f"the answer can't be gone on with after {seq.num_output_tokens} tokens: {message}; "
        f"make {param} simpler",
        param=param,
    )
