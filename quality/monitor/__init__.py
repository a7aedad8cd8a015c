"""Verify answers in a loop, and detect changes with sequential tests."""
