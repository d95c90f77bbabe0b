"""The two messages between the brain and the muscle: StepPlan down, StepResult up.

Plain frozen data without tensors: the scheduler makes plans, a runner executes
them, and the same types cross a process boundary when a Ray actor is between.

The runner keeps, per live sequence, its token ids (prompt and everything it
sampled itself), so a plan never carries a decode token: a row continues from
what the device sampled last, and step N+1 can be planned before the result of
step N has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qwen3_a8w8.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """Makes a sequence known to the runner; sent once, before its first chunk.

    Attributes:
        seq_id: unique for the lifetime of the runner.
        prompt_token_ids: the prompt.
        output_token_ids: what an earlier run of the same request has produced already
            (mid-stream failover); counts as output for penalties.
        sampling: settings with a seed filled in.
        stop_token_ids: every id that ends it (barred while `min_tokens` isn't reached).
    """

    seq_id: int
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Computes the tokens at positions [start, start + num_tokens) of a sequence.

    Attributes:
        seq_id: the sequence.
        start: position of the first token; everything before is in the cache.
        num_tokens: length of the chunk, at least 1.
        block_ids: the sequence's block table; covers start + num_tokens positions.
        is_sampled: sample the token at position start + num_tokens after this chunk.
    """

    seq_id: int
    start: int
    num_tokens: int
    block_ids: tuple[int, ...]
    is_sampled: bool


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One row of a decode batch.

    Attributes:
        seq_id: the sequence; distinct within a batch.
        position: position of the row's input token, the newest the runner knows of this
            sequence. Its K and V are written there and the token at position + 1 is sampled.
        block_ids: the sequence's block table; covers position + 1 positions.
    """

    seq_id: int
    position: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """A decode dispatch of `batch_size` rows, of which the first len(rows) are live."""

    batch_size: int
    rows: tuple[DecodeRow, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: forget, learn, prefill, decode, in this order.

    Attributes:
        step_id: counts up by one per plan.
        release: sequences to forget; unknown ids are ignored, so it may be repeated.
        start: sequences to learn.
        prefill: chunks of distinct sequences, together at most `prefill_chunk_tokens` tokens
            and at most `max_prefill_seqs` chunks.
        decode: one batch, or None.
    """

    step_id: int
    release: tuple[int, ...] = ()
    start: tuple[SequenceStart, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    decode: DecodeBatch | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's own distribution (natural log).

    Attributes:
        logprob: of the sampled token.
        top: the most likely tokens as (token id, logprob), most likely first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token sampled in a step; `position` is its own position in the sequence."""

    seq_id: int
    position: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave.

    Attributes:
        step_id: of the plan.
        sampled: one entry per decode row and per chunk with `is_sampled`.
        device_time_s: seconds from the first dispatch of the step to its last result.
    """

    step_id: int
    sampled: tuple[SampledToken, ...]
    device_time_s: float


@dataclass(frozen=True, slots=True)
class RunnerCapabilities:
    """What a runner can do, fixed once it is warm; all a scheduler has to know of it.

    Attributes:
        decode_batch_sizes: ascending, e.g. (1, 16).
        prefill_chunk_tokens: most tokens in one prefill dispatch.
        max_prefill_seqs: most chunks in one prefill dispatch.
        block_size: tokens per KV block.
        num_kv_blocks: blocks in the pool, block 0 (scratch) included.
        max_model_len: most tokens (prompt + output) of one sequence.
        vocab_size: number of token ids.
        eos_token_ids: ids that end a generation.
        decode_step_s: measured seconds of one decode step by batch size.
        description: device, instruction path, threads ... for logs and reports.
    """

    decode_batch_sizes: tuple[int, ...]
    prefill_chunk_tokens: int
    max_prefill_seqs: int
    block_size: int
    num_kv_blocks: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    decode_step_s: dict[int, float]
    description: dict[str, str | int | float]


class Runner(Protocol):
    """Executes plans, one at a time, in the order of their step ids."""

    @property
    def capabilities(self) -> RunnerCapabilities:
        """What this runner can do."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step and blocks until its results are in.

        Raises:
            UnsupportedBatchSizeError: the decode batch has a size that isn't compiled.
            InvalidRequestError: the plan names an unknown sequence, a position out of order,
                a block out of range, or a sequence twice; nothing has been dispatched.
        """
        ...

    def close(self) -> None:
        """Gives memory and threads back; may be called again."""
        ...
