"""The report and the checklist: claims, measurements and evidence in one place."""
