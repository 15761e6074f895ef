"""Whom the mechanisms are measured against: one file per peer, each with its own float64 check."""
