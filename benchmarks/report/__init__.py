"""Measurement files, and the tables, plots and page made from them."""
