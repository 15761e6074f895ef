"""Transformers' own tests of models, run against this library's; see `make test-hf`."""
