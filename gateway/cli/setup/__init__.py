"""Commands of the first five minutes: `aio init` and `aio check`."""
