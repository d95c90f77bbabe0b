"""Decodes with the C API that llama.cpp and its fork ik_llama.cpp share.

The bindings are given as a module; what differs between the two (fields of the parameters,
how the cache is cleared) is given by the adapters.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.workload import Generated, Workload


class LlamaBatches:
    """Greedy batches on the checkpoint's GGUF file.

    Args:
        api: the bindings, with the names of llama.h.
        checkpoint: what was made by `compare_peers.py`; its part `q8_0.gguf` is run.
        threads: CPU threads.
        workload: sizes the cache and the batch.
        model_options: fields of `llama_model_params` beside the library's defaults.
        context_options: fields of `llama_context_params` beside those set here.
        clear: empties the cache of the context that it is given.

    Raises:
        AttributeError: the library has no such field.
        RuntimeError: the library gave no context.
    """

    def __init__(
        self,
        api: Any,
        checkpoint: Path,
        threads: int,
        workload: Workload,
        *,
        model_options: Mapping[str, Any],
        context_options: Mapping[str, Any],
        clear: Callable[[Any], None],
    ) -> None:
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        _set_fields(model_params, model_options)
        path = checkpoint / "q8_0.gguf"
        model = api.llama_model_load_from_file(str(path).encode(), model_params)
        # A multiple of 256 tokens for each sequence.
        num_tokens = workload.batch_size * (-(-workload.max_tokens_per_sequence // 256) * 256)
        params = api.llama_context_default_params()
        common = {
            "n_seq_max": workload.batch_size,
            "n_ctx": num_tokens,
            "n_batch": num_tokens,
            "n_ubatch": 512,
            "n_threads": threads,
            "n_threads_batch": threads,
        }
        _set_fields(params, {**common, **context_options})
        self._context = api.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"{api.__name__} made no context for {path}; its log says why")
        self._api = api
        self._clear = clear
        self._vocab_size = workload.vocab_size
        room = max(workload.prefill_tokens, workload.batch_size * workload.context_tokens)
        self._batch = api.llama_batch_init(room, 0, 1)

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """See `Peer`."""
        token_ids: list[list[int]] = [[] for _ in prompts]
        instants = [time.perf_counter()]
        self._clear(self._context)
        chunks: Sequence[Sequence[int]] = prompts
        position = 0
        for _ in range(num_tokens):
            last_rows = self._decode(chunks, position)
            position += len(chunks[0])
            chunks = [[self._argmax(row)] for row in last_rows]
            for ids, chunk in zip(token_ids, chunks, strict=True):
                ids.extend(chunk)
            instants.append(time.perf_counter())
        return Generated(token_ids, instants)

    def _decode(self, chunks: Sequence[Sequence[int]], position: int) -> list[int]:
        """Runs one batch; returns the rows that have logits."""
        batch = self._batch
        row = 0
        last_rows = []
        for sequence, chunk in enumerate(chunks):
            for offset, token in enumerate(chunk):
                batch.token[row] = token
                batch.pos[row] = position + offset
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = sequence
                batch.logits[row] = offset == len(chunk) - 1
                row += 1
            last_rows.append(row - 1)
        batch.n_tokens = row
        if status := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {row} tokens gave {status}, expected 0")
        return last_rows

    def _argmax(self, row: int) -> int:
        # Cheaper than the library's own greedy sampler, which first copies all candidates.
        pointer = self._api.llama_get_logits_ith(self._context, row)
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, (self._vocab_size,)).argmax())


def _set_fields(params: Any, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        # A ctypes structure takes any attribute, and its unknown ones go nowhere.
        getattr(params, name)
        setattr(params, name, value)
