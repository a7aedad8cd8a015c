"""The sources' tables in their own form, with measurements from here: docs/report.md."""
