"""Harmony, the response format of gpt-oss: messages in channels, one for thoughts, one for calls, one for the answer."""
