"""What one core does around a step: validating, executing, isolating faults, tuning, reporting."""
