"""Triton kernels of the decoder on CUDA: each with its plain torch reference, and registered as a torch custom op.

A kernel's file holds the jitted kernel and its launcher; triton is imported by those files only, so that `ops` serves
the references where there is none. Launches are safe to capture in CUDA graphs: grids follow from static shapes and
the caller's upper bounds, never from device data. A sequence without queries and a token without a slot do nothing.
"""
