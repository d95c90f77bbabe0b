"""Decodes with the C API that llama.cpp and its fork ik_llama.cpp share.

The bindings are given as a module; what differs between the two (fields of the parameters,
how the cache is cleared) stays with the adapters.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.peers.workload import Generated, Workload


class LlamaBatches:
    """Greedy batches on a context.

    Args:
        api: the bindings, with the names of llama.h.
        context: a `llama_context` with room for `workload.batch_size` sequences.
        clear: empties the context's cache.
        workload: bounds the batch; `n_batch` of the context must hold all its prompts.
    """

    def __init__(
        self, api: Any, context: Any, clear: Callable[[], None], workload: Workload
    ) -> None:
        self._api = api
        self._context = context
        self._clear = clear
        self._vocab_size = workload.vocab_size
        room = max(workload.prefill_tokens, workload.batch_size * workload.context_tokens)
        self._batch = api.llama_batch_init(room, 0, 1)

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """See `Peer`."""
        token_ids: list[list[int]] = [[] for _ in prompts]
        instants = [time.perf_counter()]
        self._clear()
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
        """Runs one batch; gives the rows that have logits."""
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
