"""The model of an `ollama serve` that AIO started: pulled if it is not there, and loaded."""

import time
from collections.abc import Callable

import httpx
import msgspec

from gateway.engines.problem import EngineProblem
from tiers.server_words import one_line

_SAY_EVERY_SECONDS = 2.0


class _Progress(msgspec.Struct):
    status: str = ""
    total: int = 0
    completed: int = 0
    error: str = ""


class _Failure(msgspec.Struct):
    error: str = ""


async def load_ollama_model(client: httpx.AsyncClient, model: str, say: Callable[[str], None]) -> None:
    """Pull `model` unless it is there, then load it. `say` gets lines of progress. Raises `EngineProblem`."""
    try:
        known = await client.post("/api/show", json={"model": model})
        if known.status_code == 404:
            await _pull(client, model, say)
        elif known.status_code != 200:
            raise EngineProblem(f"ollama does not know the model {model}: {_error(known.content)}")
        say(f"ollama loads {model}")
        # Without a prompt it only loads.
        loaded = await client.post("/api/generate", json={"model": model, "keep_alive": -1})
        if loaded.status_code != 200:
            raise EngineProblem(f"ollama cannot load {model}: {_error(loaded.content)}")
    except httpx.HTTPError as error:
        raise EngineProblem(f"ollama stopped answering while it loaded {model}: {type(error).__name__}") from error


async def _pull(client: httpx.AsyncClient, model: str, say: Callable[[str], None]) -> None:
    said = -_SAY_EVERY_SECONDS
    done = False
    async with client.stream("POST", "/api/pull", json={"model": model}) as response:
        async for line in response.aiter_lines():
            try:
                progress = msgspec.json.decode(line, type=_Progress)
            except msgspec.DecodeError:
                continue
            if progress.error:
                raise EngineProblem(
                    f"ollama cannot pull {model}: {one_line(progress.error)}. Check the name at "
                    "https://ollama.com/library; without network, copy the models folder of a machine that has it "
                    "(OLLAMA_MODELS)"
                )
            done = progress.status == "success"
            if progress.total and time.monotonic() - said >= _SAY_EVERY_SECONDS:
                said = time.monotonic()
                share = progress.completed / progress.total
                say(f"ollama pulls {model}: {share:.0%} of {progress.total / 1e9:.2f} GB")
    if not done:
        raise EngineProblem(f"ollama did not finish pulling {model} (status {response.status_code})")


def _error(body: bytes) -> str:
    try:
        return one_line(msgspec.json.decode(body, type=_Failure).error) or "no reason given"
    except msgspec.DecodeError:
        return one_line(body[:200].decode(errors="replace"))
