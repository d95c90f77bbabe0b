"""A small random Qwen3 bound to a backend, with its own paged cache."""

import torch

from qwen3_a8w8.kernels.backend import Compiler
from qwen3_a8w8.model.linears import float_options
from qwen3_a8w8.model.qwen3 import decode, kv_cache_dims, prefill
from tests.kernels.paged_cache import scattered_tables

DIMS = {
    "NUM_LAYERS": 2,
    "HIDDEN": 192,
    "NUM_HEADS": 4,
    "KV_HEADS": 2,
    "HEAD_DIM": 64,
    "INTERMEDIATE": 328,
    "VOCAB": 301,
    "MAX_POSITIONS": 640,
}
OPTIONS = {"rms_norm_eps": 1e-6}
BLOCKS_PER_SEQ = 36
NUM_BLOCKS = 16 * BLOCKS_PER_SEQ + 1


def make_weights(constants, seed=0):
    """Random tensors for the constants of a program, by name."""
    gen = torch.Generator().manual_seed(seed)
    weights = {}
    for name, ref in sorted(constants.items()):
        if name.endswith("w_q"):
            weights[name] = torch.randint(-127, 128, ref.shape, generator=gen, dtype=torch.int8)
        elif name.endswith("w_scale"):
            weights[name] = torch.rand(ref.shape, generator=gen) * 4e-4 + 4e-4
        elif name == "rope":
            positions, head_dim = ref.shape
            inverse = 1e4 ** -(torch.arange(0, head_dim, 2) / head_dim)
            angles = torch.arange(positions)[:, None] * inverse
            weights[name] = torch.cat((angles.cos(), angles.sin()), dim=1).float()
        elif len(ref.shape) == 1:
            # As in checkpoints, and, in one layer, with more digits, as after smoothing.
            norm = torch.rand(ref.shape, generator=gen) + 0.5
            weights[name] = norm if name.startswith("layers.0") else norm.bfloat16().float()
        elif name.endswith("proj.weight"):
            weights[name] = (0.04 * torch.randn(ref.shape, generator=gen)).bfloat16()
        else:
            weights[name] = torch.randn(ref.shape, generator=gen).bfloat16()
    return weights


class SmallModel:
    """Runs prefill and decode; sequence i owns row i of the block tables."""

    def __init__(self, backend, float_linears=(), has_bf16_cache=False, block_size=16):
        self.block_size = block_size
        self.device = backend.device
        options = {**OPTIONS, **float_options(float_linears)}
        dims = {**DIMS, **kv_cache_dims(block_size, is_bf16=has_bf16_cache)}
        self.compiler = Compiler(backend)
        self.prefill_fn = self.compiler.compile(prefill, dims, options)
        self.decode_fn = self.compiler.compile(decode, dims, options)
        weights = make_weights({**self.prefill_fn.constants, **self.decode_fn.constants})
        for fn in (self.prefill_fn, self.decode_fn):
            packed = {n: backend.pack(ref, weights[n]) for n, ref in fn.constants.items()}
            fn.bind(packed)
        heads = (DIMS["NUM_LAYERS"], NUM_BLOCKS, DIMS["KV_HEADS"])
        values = (*heads, block_size, DIMS["HEAD_DIM"])
        dtype = torch.bfloat16 if has_bf16_cache else torch.int8
        self.cache = {
            "k_cache": torch.zeros(values, dtype=dtype, device=self.device),
            "v_cache": torch.zeros(values, dtype=dtype, device=self.device),
            "k_scale": torch.zeros(*heads, dims["SCALES_PER_BLOCK"], device=self.device),
            "v_scale": torch.zeros(*heads, dims["SCALES_PER_BLOCK"], device=self.device),
        }
        self.tables = scattered_tables(16, BLOCKS_PER_SEQ, NUM_BLOCKS)

    def slot(self, seq, position):
        size = self.block_size
        return int(self.tables[seq, position // size]) * size + position % size

    def prefill(self, chunks, has_logits=True):
        """Runs packed chunks (sequence, first position, ids); logits of each one's last token."""
        rows = [
            (seq, start + i, token) for seq, start, ids in chunks for i, token in enumerate(ids)
        ]
        index = {seq: i for i, (seq, _, _) in enumerate(chunks)}
        ends = torch.tensor([len(ids) for _, _, ids in chunks]).cumsum(0) - 1
        ends = ends if has_logits else ends[:0]
        logits = torch.full((len(ends), DIMS["VOCAB"]), float("nan"))

        def ints(values):
            return torch.tensor(values, dtype=torch.int32)

        logits = self._run(
            self.prefill_fn,
            token_ids=ints([token for _, _, token in rows]),
            positions=ints([p for _, p, _ in rows]),
            context_lens=ints([p + 1 for _, p, _ in rows]),
            seq_index=ints([index[seq] for seq, _, _ in rows]),
            slot_mapping=ints([self.slot(seq, p) for seq, p, _ in rows]),
            block_tables=self.tables[[seq for seq, _, _ in chunks]].contiguous(),
            logits_indices=ends.int(),
            logits=logits,
        )
        return logits

    def decode(self, rows, batch_size):
        """Decodes (sequence, position, id) rows; logits [batch_size, vocab]."""
        token_ids = torch.zeros(batch_size, 8, dtype=torch.int32)
        positions, seq_lens = torch.zeros(2, batch_size, dtype=torch.int32)
        slots = torch.arange(batch_size, dtype=torch.int32)
        tables = torch.zeros(batch_size, BLOCKS_PER_SEQ, dtype=torch.int32)
        for i, (seq, position, token) in enumerate(rows):
            token_ids[i, 0] = token
            positions[i], seq_lens[i] = position, position + 1
            slots[i] = self.slot(seq, position)
            tables[i] = self.tables[seq]
        logits = torch.full((batch_size, DIMS["VOCAB"]), float("nan"))
        return self._run(
            self.decode_fn,
            token_ids=token_ids,
            num_active=torch.tensor([len(rows)], dtype=torch.int32),
            positions=positions,
            seq_lens=seq_lens,
            slot_mapping=slots,
            block_tables=tables,
            logits=logits,
        )

    def _run(self, fn, **args):
        """One dispatch; its logits on the host."""
        moved = {name: tensor.to(self.device) for name, tensor in args.items()}
        fn(**moved, **self.cache)
        return moved["logits"].cpu()
