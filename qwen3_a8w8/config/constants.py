"""Constants that all layers of the project share and that can't be configured."""

DECODE_BATCH_SIZES = (1, 16)
"""Batch sizes the decode callable is compiled for."""

TOKENS_PER_ROW = 8
"""Width of `token_ids` and `sampled_ids`: column 0 is the token, 1..7 are draft tokens."""

MAX_LOGPROBS = 20
"""Most alternatives per position that the sampler reports."""

SCRATCH_BLOCK = 0
"""KV block that warm-up and idle rows write to; never handed to a sequence."""
