"""The op that turns logits into token ids and log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.ops.recorder import Recorder
from qwen3_a8w8.kernels.program import Ref
from qwen3_a8w8.kernels.signature import FLOAT32

SAMPLE_CONTROLS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seeds",
    "positions",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "num_logprobs",
    "bias_range",
    "bias_ids",
    "bias_values",
    "history_range",
    "history_ids",
    "history_counts",
    "allowed_start",
    "allowed_words",
)
"""Inputs of `Ops.sample` after the logits, in the order of its node's inputs."""


class SamplingOps(Recorder):
    """Sampling (notation and rules: see the package)."""

    def sample(
        self,
        logits: Ref,
        controls: Mapping[str, Ref],
        sampled_ids: Ref,
        logprobs: Ref,
        top_ids: Ref,
        top_logprobs: Ref,
    ) -> tuple[Ref, Ref, Ref, Ref]:
        """Draws one token per row and reports log-probabilities.

        Log-probabilities are log_softmax of the row's unmodified logits. The draw works on a
        copy l of the logits, in these steps:
        1. l[bias_ids[j]] += bias_values[j] for j in bias_range[b] (-inf bars a token); if
           allowed_start[b] >= 0, l[i] = -inf for each i whose bit is 0, which is bit i % 32 of
           allowed_words[allowed_start[b] + i // 32];
        2. for j in history_range[b], i = history_ids[j], c = history_counts[j] (occurrences in
           the output, 0 if only in the prompt): l[i] = l[i] / r if l[i] > 0 else l[i] * r with
           r = repetition_penalty; then l[i] -= c * frequency_penalty and, if c > 0,
           l[i] -= presence_penalty;
        3. temperature 0: the argmax, lowest id among equals. Otherwise
           w = exp((l - max l) / temperature);
        4. keep w >= min_p * max w; of these the top_k largest (<= 0: all); of these the
           smallest set, largest first, whose weight reaches top_p of their sum; among equal
           weights lower ids come first;
        5. u in [0, 1): philox4x32-10 with key (low, high word of the seed) and counter
           (position, 0, 0, 0); u = ((w0 << 21) ^ (w1 >> 11)) * 2^-53 from its first two words;
           the token is the first kept one in the order of ids at which the running sum of w
           exceeds u * (sum of kept w).
        At least one token is always kept. A row whose logits aren't all finite gives id -1.

        Args:
            logits: [B, vocab] float32.
            controls: `SAMPLE_CONTROLS` by name: temperature, top_p, min_p,
                repetition_penalty, presence_penalty, frequency_penalty [B] float32; top_k,
                positions, num_logprobs [B] int32; seeds [B] int64; bias_range, history_range
                [B, 2] int32 (begin, end); bias_ids, history_ids, history_counts [*] int32;
                bias_values [*] float32; allowed_start [B] int32, -1 where all are allowed;
                allowed_words [*] int32, ceil(vocab / 32) for each row that has a mask.
                num_logprobs: alternatives to report, -1 for no log-probabilities at all.
            sampled_ids: [B, 8] int32, written: column 0 the token, the others 0.
            logprobs: [B] float32, written where num_logprobs >= 0.
            top_ids: [B, 20] int32, the first num_logprobs of a row are written, most likely
                first, lower ids first among equals.
            top_logprobs: [B, 20] float32, likewise.

        Returns:
            sampled_ids, logprobs, top_ids, top_logprobs.
            Source: Salmon et al. 2011 (philox).
        """
        self._expect("sample", logits, FLOAT32, (None, None))
        if tuple(controls) != SAMPLE_CONTROLS:
            raise SignatureError(
                f"{self.name}: sample got the controls {tuple(controls)}, "
                f"expected {SAMPLE_CONTROLS}"
            )
        inputs = (logits, *controls.values())
        outs = (sampled_ids, logprobs, top_ids, top_logprobs)
        self._node("sample", inputs, *outs)
        return outs
