"""Plays recordings: scripted servers on a real socket behind a gateway, and the differences to what was recorded."""

import asyncio
import difflib
import json
import os
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx

from gateway.base.settings import Settings
from gateway.inference.turn_memory import TurnMemory
from tests.gateway.walk import BOUNDED
from tests.polling import eventually
from tests.recordings.caller_answers import read_answer
from tests.recordings.recording import WIDTH, Json, Recording, merged, pretty
from tests.recordings.server_answers import content_of, dialect_of, is_streamed
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.strict_servers import strict
from tiers.build import ReloadableTier, build_remote
from tiers.dialects.seal_registry import SEALS
from tiers.remote.refusals import REFUSALS

PATHS = {
    "chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses",
    "completions": "/v1/completions", "gemini": "/v1beta/models/{model}:{method}",
}  # fmt: skip
KEYS = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "MISTRAL_API_KEY", "DEEPSEEK_API_KEY", "OPENROUTER_API_KEY",
        "GROQ_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "RECORDED_KEY")  # fmt: skip
SAYS: Json = {"text": "", "reasoning": "", "refusal": "", "calls": [], "finish": "stop", "cited": []}
# What an error says, where it is less than a chat's.
ERROR_FIELDS = {
    ("messages", False): ("type", "message"), ("messages", True): ("type", "message"),
    ("responses", True): ("code", "message"),
    ("gemini", False): ("status", "message", "details"), ("gemini", True): ("status", "message", "details"),
}  # fmt: skip
MOST_TIERS = 7
DEFAULTS = {"cache_reuse": 0.6}  # knobs that a case may change
PRICE = {"input_usd_per_million": 1, "output_usd_per_million": 1}


class Stage:
    """The servers of the case that is played, and a gateway before them for each number of tiers."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack, self._gateways = folder, stack, dict[int, tuple[RunningGateway, Path]]()
        self._server = LoopbackServer(self._answer)
        self._served = dict[int, str]()
        self.seed = os.environ.get("RECORDINGS_SEED", "")

    async def start(self) -> None:
        """Start the servers."""
        await self._stack.enter_async_context(self._server)

    def expect(self, answers: list[Json], random: Random, *, are_strict: bool = False) -> None:
        """Answer the next requests so, the last of them again and again; strict servers have answers of their own."""
        self._answers, self._random, self.received = answers, random, list[Json]()
        self._are_strict = are_strict

    async def _answer(self, call: Call) -> None:
        _, name, *_ = call.path.split("/")
        index, path = len(self.received), call.path.removeprefix(f"/{name}/v1")
        self.received.append({"tier": name, "path": path, "headers": call.headers, "body": call.body})
        if self._are_strict:
            await strict(name, call)
            return
        answer = self._answers[min(index, len(self._answers) - 1)]
        streamed = is_streamed(path, call.body)
        kind, content = content_of(dialect_of(path), answer, streamed, self._random)
        headers = {"content-type": kind, "connection": "close"} | answer.get("headers", {})
        lines = "".join(f"{header}: {value}\r\n" for header, value in headers.items())
        await call.send(f"HTTP/1.1 {answer.get('status', 200)} X\r\n{lines}\r\n".encode())
        for piece in self._cut(content) if streamed else [content]:
            await call.send(piece)
            await asyncio.sleep(0)

    def _cut(self, content: bytes) -> list[bytes]:
        """Return a stream whole, cut at some positions, or byte by byte, which takes longer than all else."""
        how = self._random.choice(
            ("whole", "whole", "some", "some", "some", "bytes" if len(content) < 1000 else "some")
        )
        count = {"whole": 0, "some": 6, "bytes": len(content)}[how]
        cuts = sorted(self._random.sample(range(1, max(len(content), 2)), min(count, max(len(content) - 1, 0))))
        return [content[at:end] for at, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]

    async def gateway(self, tiers: Json) -> RunningGateway:
        """Return a gateway before these tiers, which know of no earlier case."""
        if len(tiers) == 1:
            # A catalogue has two at least; this one is never asked.
            tiers = tiers | {"spare": {"kind": "vllm"}}
        text = self._catalog(tiers)
        if len(tiers) not in self._gateways:
            folder = self._folder / str(len(tiers))
            folder.mkdir()
            (folder / "catalog.toml").write_text(text)
            settings = Settings(data_dir=str(folder), catalog=str(folder / "catalog.toml"), monitor=False)
            running = running_gateway(settings, scripted=False, protocol=BOUNDED)
            self._gateways[len(tiers)] = await self._stack.enter_async_context(running), folder / "catalog.toml"
            self._served[len(tiers)] = text
        gateway, file = self._gateways[len(tiers)]
        REFUSALS.forget()
        forget_turns(gateway)
        if self._served[len(tiers)] != text:
            file.write_text(text)
            await gateway.operations.reload.reload("recordings", "another case")
            self._served[len(tiers)] = text
            return gateway
        served = gateway.serving.routing.served
        for number, tier in served.tiers.items():
            assert isinstance(tier, ReloadableTier)
            old = tier.active_tier()
            tier.exchange(build_remote(served.catalog, served.spec(number)))
            await old.close()
        return gateway

    def _catalog(self, tiers: Json) -> str:
        base = self._server.base_url.removesuffix("/v1")
        entries = []
        for name, fields in tiers.items():
            url = f"{base}/{name}/v1"
            entry = {"name": name, "price": PRICE, "fallback": []} | fields
            if "remote" in fields:
                entry["remote"] = {"base_url": url, "model": "m", "max_context": 4096} | fields["remote"]
            else:
                entry = {"url": url, "model": "m"} | entry
            lines = [f"{key} = {_toml(value)}\n" for key, value in entry.items() if value is not None]
            entries.append("[[tiers]]\n" + "".join(lines))
        return "\n".join(entries)


def forget_turns(gateway: RunningGateway) -> None:
    """Let a gateway know as much of earlier answers as one that has just started."""
    gateway.serving.service.turn_memory = TurnMemory()
    SEALS._servers.clear()


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Serve until the block ends."""
    async with AsyncExitStack() as stack:
        started = Stage(folder, stack)
        await started.start()
        yield started


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_toml(member)}" for name, member in value.items()) + " }"
    return json.dumps(value)


async def play(stage: Stage, recording: Recording) -> list[str]:
    """Return what differs from the recording on any API, whole or streamed: nothing where all is as recorded."""
    problems = []
    for fields in parts_of(recording.fields):
        for api in apis_of(fields):
            for streamed in forms_of(fields):
                at = f"{recording.id}, {api}, {'streamed' if streamed else 'whole'}"
                problems += [f"{at}: {problem}" for problem in await _play_steps(stage, fields, api, streamed, at)]
    return problems


async def _play_steps(stage: Stage, fields: Json, api: str, streamed: bool, at: str) -> list[str]:
    gateway, problems = await stage.gateway(fields["tiers"]), list[str]()
    told: Json = {}
    for step in steps_of(fields):
        if step["asks"].get(api) is None:
            continue
        if step.get("forgets"):
            forget_turns(gateway)
        _use_knobs(gateway, DEFAULTS | step.get("knobs", {}))
        said = listed(step.get("answers", {}))[0].get("says") if step.get("answers") else None
        own = {"asked": with_told(step["asks"][api], told), "said": said}
        step["asks"] = {api: own["asked"]}
        step |= {name: with_told(step[name], told | own) for name in ("sent", "gets") if name in step}
        exchange = Exchange(stage, gateway, step, api, streamed)
        problems += await exchange.problems(at)
        told[str(len(told))] = exchange.got | own
    return problems


def _use_knobs(gateway: RunningGateway, wanted: Json) -> None:
    """Let these knobs hold; each change of any would be written to disk."""
    knobs = gateway.serving.routing.knobs
    if any(getattr(knobs.active, name) != value for name, value in wanted.items()):
        knobs.change(wanted)


def parts_of(fields: Json) -> list[Json]:
    """Return a case, or that of strict servers for as many of them at a time as a catalogue takes."""
    if not fields.get("strict"):
        return [fields]
    tiers = list(fields["tiers"].items())
    return [fields | {"tiers": dict(tiers[start : start + MOST_TIERS])} for start in range(0, len(tiers), MOST_TIERS)]


def apis_of(fields: Json) -> list[str]:
    """Return the APIs that a case asks on."""
    return [api for api, asked in fields["asks"].items() if asked is not None]


def forms_of(fields: Json) -> list[bool]:
    """Return whether each form that is recorded is streamed."""
    if "forms" in fields:
        return [form == "streamed" for form in fields["forms"]]
    answers = listed(fields.get("answers", {}))
    whole = any({"whole", "message", "calls"} & answer.keys() for answer in answers)
    streamed = any({"stream", "deltas", "pieces"} & answer.keys() for answer in answers)
    return (
        [True, False]
        if whole is streamed or any({"says", "both"} & answer.keys() for answer in answers)
        else [streamed]
    )


def steps_of(fields: Json) -> list[Json]:
    """Return the requests of a case in their order; without steps it is one."""
    steps = fields.get("steps", [{}])
    if fields.get("strict"):
        steps = [{"asks": {api: {"model": tier} for api in apis_of(fields)}} for tier in fields["tiers"]]
    return [merged(fields, step) for step in (steps.values() if isinstance(steps, dict) else steps)]


def with_told(value: Any, told: Json) -> Any:
    """Return JSON in which each text `@PATH` is the part of the exchange at that path: `@0/items/2/id` is the id of the
    third item of the first answer, `@0/blocks/2:` its blocks from the third on. In a list, the entries of a list are
    entries."""
    if isinstance(value, dict):
        return {name: with_told(member, told) for name, member in value.items()}
    if isinstance(value, list):
        entries = []
        for element in value:
            entry = with_told(element, told)
            entries += entry if isinstance(entry, list) and isinstance(element, str) else [entry]
        return entries
    if not (isinstance(value, str) and re.match(r"@(\d+|asked|said)(/|$)", value)):
        return value
    part: Any = told
    for name in value[1:].split("/"):
        if isinstance(part, list):
            part = part[int(name[:-1]) :] if name[-1] == ":" else part[int(name)]
        else:
            part = part[name]
    return part


def listed(value: Any) -> list[Any]:
    """Return the list of what may be one alone."""
    return value if isinstance(value, list) else [value]


class Exchange:
    """One request of a caller, and all that servers get for it."""

    def __init__(self, stage: Stage, gateway: RunningGateway, step: Json, api: str, streamed: bool) -> None:
        self._stage, self._gateway, self._step, self._api, self._streamed = stage, gateway, step, api, streamed
        self.told: httpx.Response | None = None
        self.got: Json = {}
        """What the caller has read in the answer."""

    async def problems(self, at: str) -> list[str]:
        """Ask, and ask again where a server has refused; return what differs."""
        refused = self._step.get("refused", [])
        refusals = [
            {"status": 400} | (refusal if isinstance(refusal, dict) else {"error": refusal}) for refusal, _ in refused
        ]
        answers = listed(self._step.get("answers", {}))
        problems = await self._ask([*refusals, *answers], at)
        requests = self._stage.received
        if "sent" in self._step:
            problems += self._sent_problems(requests)
        elif len(requests) != len(refusals) + len(answers):
            problems.append(f"{len(requests)} requests reached the servers: {pretty(requests)}")
        bodies = [request["body"] for request in requests]
        for index, (_, patch) in enumerate(refused):
            if len(bodies) > index + 1:
                wanted = merged(bodies[index], patch)
                problems += difference_to(f"request {index + 2}", wanted, bodies[index + 1], exactly=True)
        if refused and self._step.get("learned", True) and not problems:
            problems = await self._ask(answers, at)
            problems += difference_to("the next request", bodies[-1], self._stage.received[0]["body"], exactly=True)
        return problems

    def _sent_problems(self, requests: list[Json]) -> list[str]:
        """With a `plain` body, one that is recorded is the exact patch of it."""
        sent, problems = listed(self._step["sent"]), []
        if "plain" in self._step and len(sent) == len(requests):
            for recorded, request in zip(sent, requests, strict=True):
                patched = merged(self._step["plain"], recorded.get("body", request["body"]))
                wanted = {name: value for name, value in patched.items() if value is not None}
                problems += difference_to("the body that a server got", wanted, request["body"], exactly=True)
            sent = [{name: value for name, value in recorded.items() if name != "body"} for recorded in sent]
        for recorded, request in zip(sent, requests, strict=False):
            body = json.dumps(request["body"])
            problems += [f"a server got {text!r}: {body}" for text in recorded.get("without", ()) if text in body]
        sent = [{name: value for name, value in recorded.items() if name != "without"} for recorded in sent]
        return problems + difference_to("what the servers got", sent, requests)

    async def _ask(self, answers: list[Json], at: str) -> list[str]:
        """Ask once; return what differs in the answer."""
        random = Random(zlib.crc32(f"{at}{self._stage.seed}".encode()))
        self._stage.expect(answers, random, are_strict=bool(self._step.get("strict")))
        asked, path = self._step["asks"][self._api], PATHS[self._api]
        if isinstance(asked, dict):
            asked = {"model": next(iter(self._step["tiers"])), "stream": self._streamed} | asked
            if self._api == "gemini":
                # A stream is one of events, or of the elements of an array.
                method = random.choice(("streamGenerateContent", "streamGenerateContent?alt=sse"))
                path = path.format(model=asked.pop("model"), method=method if self._streamed else "generateContent")
                del asked["stream"]
            asked = json.dumps(asked)
        headers = {"x-aio-cache": "off", "content-type": "application/json"} | self._step.get("headers", {})
        content = asked.encode("utf-8", "surrogateescape")
        told = self.told = await self._gateway.http.post(path, content=content, headers=headers)
        try:
            return self._answer_problems(told) + await self._record_problems(told)
        except (ValueError, KeyError, IndexError, AssertionError) as error:
            return [f"the answer cannot be read ({error!r}): {told.text}"]

    def _wanted(self) -> Json:
        """What is recorded for this API and form. With an error or a body of its own, that alone."""
        wanted = self._step.get("gets", {})
        on = wanted.get("on", {})
        form = "streamed" if self._streamed else "whole"
        for name in (self._api, form, f"{self._api} {form}"):
            wanted = merged(wanted, on.get(name, {}))
        wanted = {"status": 200} | {name: value for name, value in wanted.items() if name not in ("on", "record")}
        if "error" in wanted:
            error_fields = ERROR_FIELDS.get((self._api, self._streamed), wanted["error"].keys())
            error = {name: value for name, value in wanted["error"].items() if name in error_fields}
            return {name: value for name, value in wanted.items() if name not in SAYS} | {"error": error}
        if "body" in wanted:
            return wanted
        wanted = SAYS | wanted
        if self._api in ("messages", "gemini"):
            # These APIs have no field of their own for a refusal, and pages are cited in their own servers' answers
            # alone.
            wanted |= {"cited": on.get(self._api, {}).get("cited", [])}
            if wanted["refusal"]:
                wanted |= {"text": wanted["refusal"], "refusal": ""}
                wanted["finish"] = "content_filter" if self._api == "messages" else wanted["finish"]
        return wanted

    def seen(self, told: httpx.Response) -> Json:
        """What the caller reads in an answer."""
        seen = {"status": told.status_code, "headers": dict(told.headers)}
        return seen | read_answer(self._api, _is_stream(told), told.content)

    def _answer_problems(self, told: httpx.Response) -> list[str]:
        wanted, seen = self._wanted(), self.seen(told)
        self.got = dict(seen)
        if "error" in seen and "error" not in wanted:
            return [f"an error: {pretty(seen['error'])}"]
        is_begun = _is_stream(told) or wanted["status"] == 200
        if "error" in seen and self._streamed and is_begun:
            # How much of an answer came before the error decides what the head says.
            wanted = {name: value for name, value in wanted.items() if name not in ("status", "headers")}
        if "body" in wanted:
            seen["body"] = told.text if isinstance(wanted["body"], str) else told.json()
        ids = [call[0] for call in seen.get("calls", ()) if call[0] or self._api != "gemini"]
        problems = [] if all(ids) and len({*ids}) == len(ids) else [f"ids of calls: {ids}"]
        if "calls" in seen:
            short = not wanted.get("calls") or len(wanted["calls"][0]) == 2
            seen["calls"] = [[call_id, name, parsed(said)][short:] for call_id, name, said in seen["calls"]]
        return problems + difference_to("what the caller got", wanted, seen)

    async def _record_problems(self, told: httpx.Response) -> list[str]:
        """Compare the request's record, which is written a little later."""
        wanted = self._step.get("gets", {}).get("record")
        if wanted is None:
            return []
        path = f"/v1/requests/{told.headers['x-aio-decision-id']}"

        async def found() -> Any:
            record = await self._gateway.http.get(path)
            return record.json() if record.status_code == 200 else None

        return difference_to("the record", wanted, await eventually(found))


def _is_stream(told: httpx.Response) -> bool:
    return "event-stream" in told.headers.get("content-type", "") or told.content.lstrip().startswith(b"[")


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def difference_to(what: str, wanted: Any, seen: Any, *, exactly: bool = False) -> list[str]:
    """Return the lines that differ. Unless `exactly`, an object may have more fields than are wanted."""
    shown = projected(wanted, seen, exactly=exactly)
    if shown == wanted:
        return []
    before, after = (pretty(side, 0, WIDTH).split("\n") for side in (wanted, shown))
    lines = difflib.unified_diff(before, after, "recorded", "now", lineterm="", n=9)
    return ["\n".join([f"{what} differs:", *lines])]


def projected(wanted: Any, seen: Any, *, exactly: bool = False) -> Any:
    """Return what is found of the fields that are wanted; null stands for a field that is not there, and `…` at an end
    of a text for any more of it. With all other fields, too, if `exactly`."""
    if isinstance(wanted, str) and isinstance(seen, str) and "…" in (wanted[:1], wanted[-1:]):
        ends = seen.endswith(wanted[1:]) if wanted[0] == "…" else seen.startswith(wanted[:-1])
        return wanted if ends or (wanted[0] == wanted[-1] and wanted[1:-1] in seen) else seen
    if isinstance(wanted, dict) and isinstance(seen, dict):
        names = [name for name in wanted if name in seen or not exactly]
        names += [name for name in seen if name not in wanted and exactly]
        return {name: projected(wanted.get(name), seen.get(name), exactly=exactly) for name in names}
    if isinstance(wanted, list) and isinstance(seen, list) and len(wanted) == len(seen):
        return [projected(element, other, exactly=exactly) for element, other in zip(wanted, seen, strict=True)]
    return seen
