"""Random and damaged input for every reader, beside a reference where there is one; see `run`."""
