"""Speed and memory of one model that writes text on this machine."""
