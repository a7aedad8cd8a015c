"""Commands that change a running server: knobs and adapters."""
