"""Low-rank adapters (LoRA, Hu et al. 2021): read, checked, held in slots, and added to a model row by row."""
