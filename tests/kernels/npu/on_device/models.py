"""Small models of the NPU backend's tests, with prompts of all kinds of lengths."""

import torch

from tests.kernels.small_model import DIMS, SmallModel

BLOCK_SIZE = 32
LENGTHS = [1, 31, 32, 33, 100, 64, 65, 7, 300, 2, 3, 63, 150, 17, 16, 90]
MIXED = [(0, "q_proj"), (0, "down_proj"), (1, "o_proj"), (1, "gate_proj")]
KINDS = {"int8": ((), False), "mixed": (MIXED, False), "bf16-cache": ((), True)}

MODEL_TOLERANCE = 5e-2
"""Relative error of logits: activations are bfloat16 and quantised values fall to either side."""


def small_model(backend, kind="int8"):
    return SmallModel(backend, *KINDS[kind], block_size=BLOCK_SIZE)


def prompt(seq, length):
    gen = torch.Generator().manual_seed(seq)
    return torch.randint(0, DIMS["VOCAB"], (length,), generator=gen).tolist()


def prefilled(backend, kind="int8"):
    model = small_model(backend, kind)
    for seq, length in enumerate(LENGTHS):
        model.prefill([(seq, 0, prompt(seq, length))])
    return model


def next_rows():
    return [(seq, length, 11 + seq) for seq, length in enumerate(LENGTHS)]


class FixedDecode:
    """Decode of 16 sequences whose arguments keep their addresses, as the runner's do."""

    def __init__(self, model):
        self.model = model
        where = model.device
        args = {
            "token_ids": torch.zeros(16, 8, dtype=torch.int32),
            "num_active": torch.zeros(1, dtype=torch.int32),
            "positions": torch.zeros(16, dtype=torch.int32),
            "seq_lens": torch.zeros(16, dtype=torch.int32),
            "slot_mapping": torch.arange(16, dtype=torch.int32),
            "block_tables": torch.zeros(16, model.tables.shape[1], dtype=torch.int32),
            "logits": torch.full((16, DIMS["VOCAB"]), float("nan")),
        }
        self.args = {name: tensor.to(where) for name, tensor in args.items()}

    def run(self, rows):
        args = self.args
        for name in ("token_ids", "positions", "seq_lens", "block_tables"):
            args[name].zero_()
        args["slot_mapping"].copy_(torch.arange(16, dtype=torch.int32))
        args["num_active"][0] = len(rows)
        args["logits"].fill_(float("nan"))
        for i, (seq, position, token) in enumerate(rows):
            args["token_ids"][i, 0] = token
            args["positions"][i], args["seq_lens"][i] = position, position + 1
            args["slot_mapping"][i] = self.model.slot(seq, position)
            args["block_tables"][i] = self.model.tables[seq]
        self.model.decode_fn(**args, **self.model.cache)
        return args["logits"].cpu().clone()
