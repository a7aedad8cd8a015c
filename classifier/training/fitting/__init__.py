"""Fit the parts of artefacts, one module each."""
