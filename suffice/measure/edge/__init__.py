"""Speed of writing on a small machine: rates, memory, and how near the machine's limit they are."""
