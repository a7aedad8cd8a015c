"""Makes checkpoints smaller: AWQ, GPTQ, SmoothQuant INT8 and FP8, one file per method, and the walk over a model."""
