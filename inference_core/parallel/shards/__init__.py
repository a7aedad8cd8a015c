"""Loads one rank's part of each model, on the CPU or on a device."""
