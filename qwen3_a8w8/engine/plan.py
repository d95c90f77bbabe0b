"""The two messages between the batch router and the runner: StepPlan down, StepResult up.

Plain frozen data without tensors: the scheduler makes plans, a runner executes
them, and the same types cross a process boundary when a Ray actor is between.

The runner keeps, per live sequence, its token ids (prompt and everything it
sampled itself), so a plan never carries a decode token: a row continues from
what the device sampled last, and step N+1 can be planned before the result of
step N has arrived.

Rows and samples are named tuples: there are sixteen of each in a step, and named tuples are made
and pickled in a third of the time of dataclasses.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import StepFailedError
from qwen3_a8w8.text.structured import StructuredOutput


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """Registers a sequence with the runner; sent before its first chunk.

    Sent again, after its release, when a step has failed.

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
        has_prompt_logprobs: report the log-probabilities of the known tokens that come after its
            positions; it then needs a row of logits for each position, instead of one.
    """

    seq_id: int
    start: int
    num_tokens: int
    block_ids: tuple[int, ...]
    is_sampled: bool
    has_prompt_logprobs: bool = False

    @property
    def num_logits(self) -> int:
        """Most rows of logits that it needs."""
        return self.num_tokens if self.has_prompt_logprobs else 1


class DecodeRow(NamedTuple):
    """One row of a decode batch.

    Attributes:
        seq_id: the sequence; distinct within a batch.
        position: position of the row's input token, the newest the runner knows of this
            sequence. Its K and V are written there and the token at position + 1 is sampled.
        block_ids: the sequence's block table; covers position + 1 positions and the drafts'.
        draft_token_ids: draft tokens for position + 1 and on, in a batch of 1 only. They are
            computed with the row; the leading ones that equal what is sampled are accepted, so
            that the step gives one token more than it accepts.
    """

    seq_id: int
    position: int
    block_ids: tuple[int, ...]
    draft_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """A decode dispatch of `batch_size` rows, of which the first len(rows) are live."""

    batch_size: int
    rows: tuple[DecodeRow, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: release, register, prefill, decode, in this order.

    Attributes:
        step_id: counts up by one per plan.
        release: sequences to release; unknown ids are ignored, so it may be repeated.
        start: sequences to register.
        prefill: chunks of distinct sequences, together at most `prefill_chunk_tokens` tokens
            and at most `max_prefill_seqs` rows of logits.
        prefill_layers: layers [begin, end) that the chunks go through in this step; None: all.
            A dispatch that has begun at layer 0 is continued, in later plans, with the same
            chunks or fewer (some sequences may have ended) and the layers that follow. Samples
            come with the last layer.
        decode: one batch, or None.
    """

    step_id: int
    release: tuple[int, ...] = ()
    start: tuple[SequenceStart, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    prefill_layers: tuple[int, int] | None = None
    decode: DecodeBatch | None = None

    @property
    def seq_ids(self) -> tuple[int, ...]:
        """The sequences that it starts or computes."""
        ids = [start.seq_id for start in self.start] + [chunk.seq_id for chunk in self.prefill]
        ids += [row.seq_id for row in self.decode.rows] if self.decode else []
        return tuple(dict.fromkeys(ids))


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
class PromptToken:
    """A token of a prompt with its log-probabilities, given the tokens before it."""

    seq_id: int
    position: int
    token_id: int
    logprobs: TokenLogprobs


class SampledToken(NamedTuple):
    """A token sampled in a step.

    Attributes:
        seq_id: the sequence.
        position: the token's own position in it.
        token_id: the token.
        logprobs: if they were asked for.
        error: why the grammar of its structured output allows no further token; the token then
            means nothing, and the sequence has to end.
    """

    seq_id: int
    position: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave.

    Attributes:
        step_id: of the plan.
        sampled: one entry per decode row and per chunk with `is_sampled`; of a row with draft
            tokens one per accepted token and one more, in the order of their positions.
        device_time_s: seconds that the device computed.
        prefill_time_s: those of them that went into the step's chunks.
        idle_s: seconds that the device waited, from its last work in the step before to its last
            work in this one.
        prompt_tokens: what chunks with `has_prompt_logprobs` report.
    """

    step_id: int
    sampled: tuple[SampledToken, ...]
    device_time_s: float
    prefill_time_s: float = 0.0
    idle_s: float = 0.0
    prompt_tokens: tuple[PromptToken, ...] = ()


@dataclass(frozen=True, slots=True)
class RunnerCapabilities:
    """What a runner can do, fixed once it is warm; all that a scheduler needs of it.

    Attributes:
        decode_batch_sizes: ascending, e.g. (1, 16).
        prefill_chunk_tokens: most tokens in one prefill dispatch.
        max_prefill_seqs: most chunks in one prefill dispatch, and most rows of logits.
        block_size: tokens per KV block.
        num_kv_blocks: blocks in the pool, block 0 (scratch) included.
        max_model_len: most tokens (prompt + output) of one sequence.
        vocab_size: number of token ids.
        eos_token_ids: ids that end a generation.
        decode_step_s: measured seconds of one decode step by batch size.
        description: device, instruction path, threads ... for logs and reports.
        num_layers: layers of the model.
        prefill_token_s: measured seconds per token of a small prefill chunk; 0.0: not measured.
        max_draft_tokens: most draft tokens of the row in a batch of 1; 0: none are taken.
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
    num_layers: int = 1
    prefill_token_s: float = 0.0
    max_draft_tokens: int = 0


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
            Exception: whatever else went wrong. The next plans release and register again the
                sequences that they continue.
        """
        ...

    def prepare_grammar(self, structured: StructuredOutput) -> None:
        """Compiles the grammar of a request that is about to be admitted; waits for it.

        May be called while a step runs, from any thread.

        Raises:
            InvalidRequestError: the grammar can't be used; `param` names its field.
        """
        ...

    def close(self) -> None:
        """Frees memory and threads; may be called again."""
        ...


logger = logging.getLogger(__name__)


def execute_step(runner: Runner, plan: StepPlan) -> StepResult:
    """Runs one step.

    Raises:
        StepFailedError: the runner raised, whatever it was; the log has the traceback. What of
            the plan was carried out isn't known.
    """
    try:
        return runner.execute(plan)
    except Exception as error:
        logger.exception("step %d failed", plan.step_id)
        raise StepFailedError(f"step {plan.step_id}: {type(error).__name__}: {error}") from error
