"""Architectures of transformers: configurations and tensors, theirs and ours, both directions."""
