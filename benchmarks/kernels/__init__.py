"""Benchmarks of single kernels, on a CPU and on a CUDA device."""
