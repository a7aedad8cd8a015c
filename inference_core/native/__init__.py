"""The native CPU kernels (optional: without a compiler the torch path serves)."""
