"""Instructions of our kernels and of llama.cpp's on ARM, counted under qemu."""
