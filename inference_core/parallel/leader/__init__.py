"""The leader of a replica: gathers the ranks, loads the model, and drives all ranks through one Core."""
