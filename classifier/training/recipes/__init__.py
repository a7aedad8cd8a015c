"""Whole trainings, from rows to an artefact."""
