"""The security checklist: facts and checks."""
