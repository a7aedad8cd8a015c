"""Runs steps on a device: persistent inputs, CUDA graphs per batch size, and asynchronous results."""
