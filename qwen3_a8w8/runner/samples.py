"""What a dispatch's logits are for, and reading what the sampler made of them.

A row of logits either gives a sequence its next token, or is looked up for a token that is
known: that one is then "drawn" by force, for its log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from qwen3_a8w8.engine.plan import PrefillChunk, PromptToken, SampledToken, TokenLogprobs
from qwen3_a8w8.errors import EngineDeadError
from qwen3_a8w8.runner.sequences import RunnerSequence


class Samples:
    """The sampler's outputs on the host.

    Attributes:
        ids: the token drawn for each live row; -1 where the logits weren't finite.
    """

    def __init__(self, host: Mapping[str, NDArray[Any]], num_rows: int) -> None:
        """Reads the ids.

        Args:
            host: outputs of `qwen3.sample` by name; without those of log-probabilities if no
                row has asked for them.
            num_rows: live rows.
        """
        self._host = host
        self.ids: list[int] = host["sampled_ids"][:num_rows, 0].tolist()

    def logprobs(self, index: int, num_top: int) -> TokenLogprobs:
        """The log-probabilities of a row that has asked for `num_top` alternatives."""
        host = self._host
        ids = host["top_ids"][index, :num_top].tolist()
        values = host["top_logprobs"][index, :num_top].tolist()
        return TokenLogprobs(float(host["logprobs"][index]), tuple(zip(ids, values, strict=True)))


def wanted_after(
    chunks: Sequence[PrefillChunk], sequences: Mapping[int, RunnerSequence]
) -> list[tuple[RunnerSequence, int | None]]:
    """What each row of logits after prefill is for, in the order of `pack_prefill`'s indices.

    Returns:
        Sequences, each with the position of a known token, or None for a new one.
    """
    wanted: list[tuple[RunnerSequence, int | None]] = []
    for chunk in chunks:
        sequence = sequences[chunk.seq_id]
        if chunk.has_prompt_logprobs:
            end = chunk.start + chunk.num_tokens + (not chunk.is_sampled)
            wanted += [(sequence, position) for position in range(chunk.start + 1, end)]
        if chunk.is_sampled:
            wanted.append((sequence, None))
    return wanted


def take(samples: Samples, index: int, sequence: RunnerSequence) -> SampledToken:
    """Reads a new token and gives it to its sequence.

    Raises:
        EngineDeadError: the logits aren't finite.
    """
    position = len(sequence.token_ids)
    token_id = samples.ids[index]
    if token_id < 0:
        raise _not_finite(sequence, position)
    sequence.append(token_id)
    error = None if sequence.grammar is None else sequence.grammar.error
    num_top = sequence.sampling.logprobs
    logprobs = None if num_top is None else samples.logprobs(index, num_top)
    return SampledToken(sequence.seq_id, position, token_id, logprobs, error)


def look_up(samples: Samples, index: int, sequence: RunnerSequence, position: int) -> PromptToken:
    """Reads the log-probabilities of the known token at a position.

    Raises:
        EngineDeadError: the logits aren't finite.
    """
    token_id = samples.ids[index]
    if token_id < 0:
        raise _not_finite(sequence, position)
    logprobs = samples.logprobs(index, sequence.sampling.prompt_logprobs or 0)
    return PromptToken(sequence.seq_id, position, token_id, logprobs)


def _not_finite(sequence: RunnerSequence, position: int) -> EngineDeadError:
    return EngineDeadError(
        f"the logits at position {position} of sequence {sequence.seq_id} aren't all "
        "finite; the checkpoint or a kernel is broken"
    )
