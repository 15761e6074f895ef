"""Instruments of this repository: seeded bugs, random input, killed programs."""
