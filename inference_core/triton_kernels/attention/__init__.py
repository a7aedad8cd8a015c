"""Kernels over the paged KV cache: attention, rotary embedding with cache writes, block copies."""
