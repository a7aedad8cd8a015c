"""The model of an artefact, and its manifest."""
