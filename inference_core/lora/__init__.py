"""Low-rank adapters (LoRA, Hu et al. 2021): reads and checks them, keeps them in slots, applies them per row."""
