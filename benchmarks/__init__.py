"""Speed, measured against named peers in the same interleaved run; correctness first."""
