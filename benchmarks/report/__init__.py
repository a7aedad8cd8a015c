"""Measurement files, and the tables, plots and pages made from them."""
