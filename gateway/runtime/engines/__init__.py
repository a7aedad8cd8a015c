"""Processes of inference engines that AIO starts, watches, restarts and stops."""
