"""Builds a core from model files and a specification."""
