"""Steps on an accelerator: persistent inputs, captured graphs per batch size, and results that are waited for late."""
