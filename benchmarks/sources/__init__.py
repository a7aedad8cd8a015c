"""The sources' tables in their own form, with measurements from here: docs/results/report.md."""
