"""Figures that the sources claim, measured here as counts and ratios, which other work on the machine does not move."""
