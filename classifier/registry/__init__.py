"""Versions on disk: loading, checking, promoting, erasing."""
