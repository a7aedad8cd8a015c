"""The model of an `ollama serve` that AIO started: pulled if it is not there, and loaded."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from gateway.runtime.engines.problem import EngineProblem
from inference_core.io.json_errors import JSON_ERRORS
from tiers.remote.http_exchange import IDENTITY, bounded_answer, lines_of, pieces_of
from tiers.server_words import one_line

_SAY_EVERY_SECONDS = 2.0
_MOST_BYTES, _MOST_LINE_BYTES = 16 * 2**20, 64 * 1024
# Its engine's own time limit for a start is shorter.
_MOST_SECONDS = 86_400.0


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
        known, reason = await _post(client, "/api/show", {"model": model})
        if known.status_code == 404:
            await _pull(client, model, say)
        elif known.status_code != 200:
            raise EngineProblem(f"ollama does not know the model {model}: {_error(reason)}")
        say(f"ollama loads {model}")
        # Without a prompt it only loads.
        loaded, reason = await _post(client, "/api/generate", {"model": model, "keep_alive": -1})
        if loaded.status_code != 200:
            raise EngineProblem(f"ollama cannot load {model}: {_error(reason)}")
    except httpx.HTTPError as error:
        raise EngineProblem(f"ollama stopped answering while it loaded {model}: {type(error).__name__}") from error


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[httpx.Response, bytes]:
    return await bounded_answer(client, client.build_request("POST", path, json=body), _MOST_BYTES, _MOST_SECONDS)


async def _pull(client: httpx.AsyncClient, model: str, say: Callable[[str], None]) -> None:
    said = -_SAY_EVERY_SECONDS
    done = False
    async with client.stream("POST", "/api/pull", json={"model": model}, headers=IDENTITY) as response:
        async for line in lines_of(pieces_of(response), _MOST_LINE_BYTES):
            try:
                progress = msgspec.json.decode(line, type=_Progress)
            except JSON_ERRORS:
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
    except JSON_ERRORS:
        return one_line(body[:200].decode(errors="replace"))
