"""Commands that start processes or prepare their data folder."""
