"""Harmony, the response format of gpt-oss: thoughts, calls of tools and the answer in channels of their own."""
