"""The outcome model of an artefact, and its manifest."""
