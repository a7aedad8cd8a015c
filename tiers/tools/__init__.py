"""Tool calling: how tools are shown to a model, how it is held to call them, and how its calls are read."""
