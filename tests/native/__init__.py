"""Tests of the kernels without torch: a C++ program, see `run`."""
