"""Every verb that writes, killed before each of its writes."""
