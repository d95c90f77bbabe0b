"""One token sequence on its way through the engine, and a batch that stays together.

Holds the state that scheduling depends on: which tokens are known, which positions
are computed, which blocks they are in. Takes no decision; `scheduling/scheduler.py` does.

Counting with a step in flight: `token_ids` are known to this process,
`num_in_flight` more have been (or are about to be) sampled on the device.
Everything is keyed by absolute position, never by step, so a sequence that is
computed twice gives the same tokens twice.
"""

from __future__ import annotations

from enum import Enum

from qwen3_a8w8.engine.plan import PromptToken, SequenceStart
from qwen3_a8w8.engine.prompt_lookup import PromptLookup
from qwen3_a8w8.engine.request import FinishReason
from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.kv_cache.prefix_index import BlockKey, extend_block_keys, root_key


class SequenceState(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """A prompt and its growing output.

    Attributes:
        seq_id: ascending in the order of arrival.
        token_ids: prompt and output as far as known here.
        num_prompt_tokens: how many of them are the prompt.
        num_resumed_tokens: output tokens an earlier run had produced.
        sampling: settings, with the seed filled in and `n` = 1.
        stop_token_ids: ids that end it.
        max_tokens: most output tokens, after clamping to the room there is.
        rank: lower ones go first: its priority, then its place in the order of arrival.
        explicit_batch: the explicit batch it belongs to, or None.
        state: waiting, running or finished.
        finish_reason: why it ended, once it has.
        is_started: whether it is registered with the runner.
        shares_blocks: whether others may have the blocks of its prefix, and it theirs.
        is_canary: whether it isn't anybody's request but proves that the runner works.
        arrived_s: when it was queued, on the engine's clock.
        started_s: when it was first admitted, or None before.
        first_token_s: when its first token was in, of those generated here.
        last_token_s: when the last one was.
        num_failed_steps: failed steps it was part of for which no other one was found guilty.
        block_ids: its block table; the same object until it changes, so that plans can share it.
        num_computed_tokens: positions whose K and V are written by the plans made so far.
        num_in_flight: samples planned but not known yet.
        prefill_end: positions to compute before it can decode, set at each admission.
        num_published_blocks: leading blocks that are findable in the prefix cache.
        num_cached_tokens: tokens taken from the prefix cache at its first admission.
        num_preemptions: how often its blocks were taken away.
        last_decode_step: id of the last step that decoded it, -1 before.
        prompt_tokens: log-probabilities of the prompt so far, by position.
    """

    __slots__ = (
        "_block_keys",
        "_lookup",
        "_root_key",
        "arrived_s",
        "block_ids",
        "explicit_batch",
        "finish_reason",
        "first_token_s",
        "is_canary",
        "is_started",
        "last_decode_step",
        "last_token_s",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_failed_steps",
        "num_in_flight",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_resumed_tokens",
        "prefill_end",
        "prompt_tokens",
        "rank",
        "sampling",
        "seq_id",
        "shares_blocks",
        "started_s",
        "state",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        seq_id: int,
        prompt_token_ids: tuple[int, ...],
        output_token_ids: tuple[int, ...],
        sampling: SamplingParams,
        *,
        stop_token_ids: tuple[int, ...],
        max_tokens: int,
        priority: int = 0,
        shares_blocks: bool = False,
        cache_salt: str | None = None,
        explicit_batch: ExplicitBatch | None = None,
        is_canary: bool = False,
    ) -> None:
        self.seq_id = seq_id
        self.rank = (priority, seq_id)
        self.token_ids = [*prompt_token_ids, *output_token_ids]
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_resumed_tokens = len(output_token_ids)
        self.sampling = sampling
        self.stop_token_ids = stop_token_ids
        self.max_tokens = max_tokens
        self.explicit_batch = explicit_batch
        self.state = SequenceState.WAITING
        self.finish_reason: FinishReason | None = None
        self.is_started = False
        self.is_canary = is_canary
        self.arrived_s = 0.0
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.num_failed_steps = 0
        self.block_ids: tuple[int, ...] = ()
        self.num_computed_tokens = 0
        self.num_in_flight = 0
        self.prefill_end = 0
        self.num_published_blocks = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.last_decode_step = -1
        self.prompt_tokens: dict[int, PromptToken] = {}
        self.shares_blocks = shares_blocks
        self._root_key = root_key(cache_salt)
        self._block_keys: list[BlockKey] = []
        self._lookup: PromptLookup | None = None
        if explicit_batch is not None:
            explicit_batch.members.append(self)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens known here."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_total_tokens(self) -> int:
        """Tokens the runner will know once every plan made so far is done."""
        return len(self.token_ids) + self.num_in_flight

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Log-probabilities of its prompt were asked for, and aren't all known yet."""
        return (
            self.sampling.prompt_logprobs is not None
            and self.num_resumed_tokens == 0
            and len(self.prompt_tokens) < self.num_prompt_tokens - 1
        )

    @property
    def is_prefilling(self) -> bool:
        """Running, with positions left to compute before it can decode."""
        return self.state is SequenceState.RUNNING and self.num_computed_tokens < self.prefill_end

    @property
    def can_decode(self) -> bool:
        """Prefilled with its whole batch, and not known to end by the samples in flight."""
        return (
            self.state is SequenceState.RUNNING
            and self.num_computed_tokens >= self.prefill_end
            and self.num_total_tokens - self.num_prompt_tokens < self.max_tokens
            and (self.explicit_batch is None or self.explicit_batch.is_prefilled)
        )

    def block_keys(self, block_size: int) -> list[BlockKey]:
        """Prefix-cache keys of the full blocks of the known tokens."""
        extend_block_keys(self._block_keys, self.token_ids, block_size, self._root_key)
        return self._block_keys

    def propose_drafts(self, max_drafts: int) -> tuple[int, ...]:
        """Draft tokens after the known ones, as many as it could still take.

        Meant for a sequence without samples in flight.
        """
        # A step gives one token more than it accepts draft tokens.
        max_drafts = min(max_drafts, self.max_tokens - self.num_output_tokens - 1)
        if max_drafts <= 0:
            return ()
        if self._lookup is None:
            self._lookup = PromptLookup()
        return self._lookup.propose(self.token_ids, max_drafts)

    def start_message(self) -> SequenceStart:
        """What the runner needs of it."""
        return SequenceStart(
            seq_id=self.seq_id,
            prompt_token_ids=tuple(self.token_ids[: self.num_prompt_tokens]),
            output_token_ids=tuple(self.token_ids[self.num_prompt_tokens :]),
            sampling=self.sampling,
            stop_token_ids=self.stop_token_ids,
        )

    def append(self, token_id: int) -> FinishReason | None:
        """Adds a sampled token; returns the finish reason if it ends the sequence."""
        # min_tokens counts tokens before the stop token, which is when the runner bars it. If it
        # comes all the same, the grammar allows nothing else.
        sampling, num_before = self.sampling, self.num_output_tokens
        may_stop = sampling.structured is not None or num_before >= sampling.min_tokens
        self.token_ids.append(token_id)
        if may_stop and token_id in self.stop_token_ids:
            return "stop"
        return "length" if num_before + 1 >= self.max_tokens else None


class ExplicitBatch:
    """The sequences of an explicit batch: they decode together, and with no others.

    Attributes:
        batch_size: size of every decode dispatch of the batch, also after rows have ended.
        members: its sequences, in the order of the prompts.
    """

    __slots__ = ("batch_size", "members")

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.members: list[Sequence] = []

    @property
    def is_prefilled(self) -> bool:
        """Whether no member has to be admitted or prefilled any more."""
        return not any(
            member.state is SequenceState.WAITING or member.is_prefilling for member in self.members
        )

    def dissolve(self) -> None:
        """Makes the members independent sequences."""
        for member in self.members:
            member.explicit_batch = None
