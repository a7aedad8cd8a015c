"""Commands that measure a core, its models and kernels."""
