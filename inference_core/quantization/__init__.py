"""Quantises checkpoints: AWQ, GPTQ, SmoothQuant INT8 and FP8, layer by layer, and reports the quality."""
