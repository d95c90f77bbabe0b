"""The KV cache: who holds which block, how blocks are found by prefix, how they lie in memory."""
