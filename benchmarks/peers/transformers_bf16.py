"""transformers in bf16 with eager PyTorch: the baseline without a special engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.workload import Generated, Workload, run_adapter


class Transformers:
    """A causal LM and its own cache."""

    def __init__(self, checkpoint: Path, threads: int, workload: Workload) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(
            checkpoint / "bf16", dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """See `Peer`."""
        token_ids: list[list[int]] = [[] for _ in prompts]
        instants = [time.perf_counter()]
        cache = None
        with self._torch.inference_mode():
            ids = self._torch.tensor(prompts)
            for _ in range(num_tokens):
                output = self._model(
                    input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
                cache = output.past_key_values
                ids = output.logits[:, -1].argmax(-1, keepdim=True)
                for tokens, token in zip(token_ids, ids[:, 0].tolist(), strict=True):
                    tokens.append(token)
                instants.append(time.perf_counter())
        return Generated(token_ids, instants)


if __name__ == "__main__":
    run_adapter("transformers_bf16", ["transformers", "torch"], Transformers)
