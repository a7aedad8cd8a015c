"""Downloads an engine's model in a process of its own, which ends at once when AIO does."""

import asyncio
import os
from collections.abc import Callable

from gateway.base.configuration.own_command import own_command
from gateway.runtime.engines.engine_child import EngineChild
from gateway.runtime.engines.engine_log import EngineLog
from gateway.runtime.engines.problem import EngineProblem
from inference_core.loaders.hub_model import HubModel, downloaded
from inference_core.loaders.hub_retry import Form

_SAY_EVERY_SECONDS = 1.0


async def pull_model(model: HubModel, form: Form, log: EngineLog, say: Callable[[str], None]) -> str:
    """Return the path of the model's files, downloaded as by `aio models pull` if they are not here. Raises
    `EngineProblem`."""
    if (path := downloaded(model)) is not None:
        return str(path)
    say(f"the model {model} is looked up")
    log.forget_lines()
    command = own_command("models", "pull", "--form", form, f"hf:{model}")
    child = await EngineChild.start(command, {**os.environ, "PYTHONUNBUFFERED": "1"}, log, grace_seconds=1.0)
    try:
        while not (await asyncio.wait({child.ended}, timeout=_SAY_EVERY_SECONDS))[0]:
            if lines := log.last_lines(1):
                say(lines[0])
    finally:
        await child.stop()
    path = downloaded(model)
    if path is None:
        lines = log.last_lines(1)
        raise EngineProblem(lines[0].removeprefix("Error: ") if lines else f"the download of {model} failed")
    return str(path)
