"""Whether a model is served here, on which devices, and by what else: from its headers alone."""
