"""Helpers that walk through compiled grammars over the demo model's vocabulary."""

import random
from pathlib import Path

import numpy as np

import qwen3_a8w8

DEMO = Path(qwen3_a8w8.__file__).parent / "demo"
EOS = (2553, 2551)
PADDED_VOCAB = 2600
"""Like the published models', the vocabulary is larger than the tokenizer's 2560."""


def ids_of(mask):
    """The ids whose bits are set."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def follow(state, token_ids):
    """Takes tokens, each of which has to be allowed."""
    for token_id in token_ids:
        assert token_id in ids_of(state.allowed()), token_id
        state.advance(token_id)
    assert state.error is None


def random_answer(compiler, tokenizer, structured, seed, most=400):
    """Walks through a grammar at random; returns the text, or None if it did not end."""
    state, rng, token_ids = compiler.start(structured), random.Random(seed), []
    while len(token_ids) < most:
        allowed = ids_of(state.allowed())
        token_id = rng.choice(allowed)
        state.advance(token_id)
        if token_id in EOS:
            return tokenizer.decode(token_ids)
        token_ids.append(token_id)
    return None
