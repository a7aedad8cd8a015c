"""The final answer of a text: which kind a prompt asks for, what the text says, and whether two texts agree on it."""
