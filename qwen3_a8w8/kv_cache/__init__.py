"""The KV cache: reference counts of its blocks, and how blocks are found by prefix."""
