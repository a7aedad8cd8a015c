"""Tests and scores that depend on nothing here."""
