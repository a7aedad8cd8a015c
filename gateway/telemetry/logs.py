"""Logging of the process: one line per event on standard error, without prompts, answers or keys."""

import logging
import sys

FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"


def configure_logging(level: str) -> None:
    """Send everything from `level` on to standard error; chatty libraries only from warnings on."""
    logging.basicConfig(level=level.upper(), format=FORMAT, stream=sys.stderr, force=True)
    for name in ("httpx", "httpcore", "alembic", "apscheduler", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
