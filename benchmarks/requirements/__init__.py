"""The rows of docs/results/requirements.md, the tests that show them, and the checklist of practice upon them."""
