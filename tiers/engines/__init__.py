"""Inference engines of other projects that AIO can start: their command lines and states, as data."""
