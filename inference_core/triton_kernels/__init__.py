"""Triton kernels of the decoder on CUDA, each with a plain torch reference and registered as a torch custom op.

A kernel's file holds the jitted kernel and its launcher. Only those files import triton, so that the `*_ops` modules
work without it, by the references. Launches are safe to capture in CUDA graphs: grids follow from static shapes and
the caller's upper bounds, never from device data. A sequence without queries and a token without a slot are no-ops.
"""
