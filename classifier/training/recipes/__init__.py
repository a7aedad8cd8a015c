"""Training recipes, from rows to an artefact."""
