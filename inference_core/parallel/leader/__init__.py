"""The leader of a mesh: gathers the ranks, loads the model, and drives all ranks through one Core."""
