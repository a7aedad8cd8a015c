"""Questions with checkable answers for a real gateway: `aio serve` with the catalogue `ladder`, whose core and adapter
answer over HTTP; what each tier says to them, whether that is right, and what it costs."""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.ladder.tasks import ladder_tasks
from benchmarks.replay.deployment import Conditions, Deployment
from benchmarks.replay.ladder import GOOD, POOR, Answer, Bool, Float, Ladder, Prompt, TierTerms
from benchmarks.running_server import running_server
from gateway.base.configuration import own_command, variable_of
from gateway.base.settings import Settings
from quality.evaluation.everyday_tasks import everyday_tasks, is_right
from quality.store.database import open_database
from tiers.catalog.load import load_catalog

# A fifth of the questions that are routed is everyday chat.
_CHAT = 0.2
# Whose answers are numbers, which a rule compares, at levels on which the strongest tier agrees with itself.
_RULED, _EASY = ("sums", "letters"), 3
_MOST_TOKENS = 160
_IN_FLIGHT = 24
# Nothing that a working gateway does here takes so long.
_MOST_SECONDS = 600.0
# The binding of the first tier that has one, which is tier 2.
ADAPTER = 'adapter = "ladder"\n'
WORSE_TIER = 2


class Question(msgspec.Struct, frozen=True):
    """A prompt, and the check of an answer's text."""

    prompt: Prompt
    is_right: Callable[[str], bool]


class Questions(msgspec.Struct, frozen=True, kw_only=True):
    """No question is in two lists. `held` are routed by dry runs, and every tier is asked; `traffic` is asked from the
    start; `rules` are easy ones that the gateway's own rules check, asked of tier 2 after its adapter is gone."""

    held: list[Question]
    traffic: list[Question]
    rules: list[Question]


def questions(seed: int, held: int, traffic: int, rules: int) -> Questions:
    """Draw so many of each, in wordings that the adapter never saw; deterministic in the arguments. Raises `ValueError`
    if there are fewer."""
    chats = [
        Question(Prompt(f"chat {n}", "chat", task.prompt, ()), partial(is_right, task))
        for n, task in enumerate(everyday_tasks(seed, 2))
    ]
    tasks = [
        (task, Question(Prompt(f"task {n}", task.family, task.prompt, ()), task.is_right))
        for n, task in enumerate(ladder_tasks(seed, 16, "held-out"))
    ]
    easy = [question for task, question in tasks if task.level <= _EASY and task.family in _RULED][:rules]
    kept = {question.prompt.text for question in easy}
    routed = [question for _, question in tasks if question.prompt.text not in kept]
    chat = [round(_CHAT * count) for count in (held, traffic)]
    hard = [held - chat[0], traffic - chat[1]]
    if len(easy) < rules or len(chats) < sum(chat) or len(routed) < sum(hard):
        raise ValueError(f"there are no {held} + {traffic} + {rules} different questions; ask for fewer")
    return Questions(
        held=[*routed[: hard[0]], *chats[: chat[0]]],
        traffic=[*routed[hard[0] : sum(hard)], *chats[chat[0] : sum(chat)]],
        rules=easy,
    )


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `tier`, whether it is right, and its US dollars."""

    tier: int
    text: str
    right: bool
    usd: float


class CheckedLadder(Ladder, frozen=True, dict=True, kw_only=True):
    """Prompts with answers that were checked: what is right takes the place of "no worse", and `usd` by prompt and tier
    is what the gateway billed."""

    usd: tuple[tuple[float, ...], ...]

    @cached_property
    def costs(self) -> Float:
        """US dollars [prompts, tiers]."""
        return np.array(self.usd)

    @cached_property
    def no_worse(self) -> Bool:
        """[prompts, tiers]: whether the answer is right."""
        return self.marks > POOR


def checked_ladder(tiers: Sequence[str], asked: Sequence[Question], said: Sequence[Sequence[Said]]) -> CheckedLadder:
    """The answers `said` by every one of the `tiers` to each question."""
    prompts = [
        msgspec.structs.replace(
            question.prompt, answers=tuple(Answer(answer.text, GOOD if answer.right else POOR) for answer in answers)
        )
        for question, answers in zip(asked, said, strict=True)
    ]
    terms = tuple(TierTerms(name, 0.0, 0.0, 0.0) for name in tiers)
    return CheckedLadder(
        name="ladder",
        tiers=terms,
        prompts=tuple(prompts),
        usd=tuple(tuple(answer.usd for answer in answers) for answers in said),
    )


class LadderGateway(Deployment):
    """The gateway, its settings, and its catalogue, a copy of `ladder`."""

    def __init__(self, url: str, admin_key: str, engine: AsyncEngine, conditions: Conditions, settings: Settings):
        super().__init__(url, admin_key, engine, conditions)
        self._settings, self.catalog = settings, load_catalog(settings.catalog)

    async def answers(self, asked: Sequence[tuple[Question, str]], *, verified: bool = False) -> list[Said]:
        """Ask each question of its model, many at a time. Without `verified` nothing is learned from an
        answer. Raises `httpx.HTTPStatusError`."""
        free = asyncio.Semaphore(_IN_FLIGHT)
        headers = {"x-aio-cache": "off", "x-aio-agree": "false"} | ({} if verified else {"x-aio-consent": "answer"})

        async def answer(question: Question, model: str) -> Said:
            turn = {"role": "user", "content": question.prompt.text}
            body = {"model": model, "messages": [turn], "temperature": 0, "max_tokens": _MOST_TOKENS}
            async with free:
                got = await self._client.post("/v1/chat/completions", json=body, headers=headers)
            text = got.raise_for_status().json()["choices"][0]["message"]["content"] or ""
            usd = float(got.headers["x-aio-cost-usd"])
            return Said(tier=int(got.headers["x-aio-tier"]), text=text, right=question.is_right(text), usd=usd)

        self.asked += len(asked)
        return await asyncio.gather(*(answer(*pair) for pair in asked))

    async def import_outcomes(self, asked: Sequence[Question], said: Sequence[Sequence[Said]]) -> int:
        """Store the checks of every tier's answers by `aio outcomes import`, and wait until they count in decisions;
        return how many prompts it labelled. Raises `TimeoutError` and `RuntimeError`."""
        lines = [
            json.dumps({"prompt": question.prompt.text, "scores": {str(a.tier): float(a.right) for a in answers}})
            for question, answers in zip(asked, said, strict=True)
        ]
        file = Path(self._settings.catalog).with_name("outcomes.jsonl")
        file.write_text("\n".join(lines), encoding="utf-8")
        before = await self._labels(asked[0].prompt)
        folders = {"data_dir": str(self._settings.data_path), "catalog": self._settings.catalog}
        process = await asyncio.create_subprocess_exec(
            *own_command("outcomes", "import", str(file), "--json"),
            env={**os.environ, **{variable_of(name): value for name, value in folders.items()}},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, warned = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"aio outcomes import ended with status {process.returncode}: {warned.decode()}")
        async with asyncio.timeout(_MOST_SECONDS):
            # Polled: the event happens in another process.
            while await self._labels(asked[0].prompt) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        return int(json.loads(printed)["labels"])

    async def _labels(self, prompt: Prompt) -> list[float]:
        labels: list[float] = (await self._routing(prompt))["decision"]["inputs"]["prediction"]["labels"]
        return labels

    async def lose_adapter(self) -> None:
        """Reload the catalogue without the adapter of tier 2. Raises `httpx.HTTPStatusError`."""
        write_catalogue(Path(self._settings.catalog), without=ADAPTER)
        order = {"reason": f"tier {WORSE_TIER} without its adapter"}
        (await self._admin.post("/v1/admin/reload", json=order)).raise_for_status()

    async def trust(self, prompts: Sequence[Prompt], tier: int) -> float:
        """The mean P, by dry runs, that the answer of `tier` is no worse than the strongest tier's."""
        routed = await asyncio.gather(*map(self._routing, prompts))
        return float(np.mean([dry_run["decision"]["inputs"]["prediction"]["p_ok"][tier - 1] for dry_run in routed]))


@asynccontextmanager
async def served_ladder(folder: Path, conditions: Conditions) -> AsyncIterator[LadderGateway]:
    """`aio serve` of the catalogue `ladder` that has never served, with its state in `folder`."""
    catalogue = folder / "ladder.toml"
    write_catalogue(catalogue)
    settings = Settings(catalog=str(catalogue), data_dir=str(folder / "data"), cache_dir=str(folder / "cache"))
    engine = open_database(settings.database)
    admin_key = secrets.token_urlsafe(24)
    try:
        environment = {**conditions.environment, "AIO_ADMIN_KEYS": f"benchmark={admin_key}"}
        async with running_server(settings, environment) as server:
            gateway = LadderGateway(server.url, admin_key, engine, conditions, settings)
            try:
                yield gateway
            finally:
                await gateway.close()
    finally:
        await engine.dispose()


def write_catalogue(path: Path, without: str = "") -> None:
    """The shipped catalogue `ladder`, once without a text."""
    path.write_text(
        (files("tiers.catalogs") / "ladder.toml").read_text(encoding="utf-8").replace(without, "", 1), "utf-8"
    )
