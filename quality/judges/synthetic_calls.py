"""Generated pairs of tool calls with known outcomes, on which the judge of tool calls is calibrated."""

import json
import random
from typing import Any, NamedTuple

from quality.judges.calibration import Calibration
from quality.judges.tool_calls import NAME, flaw_of, judge_calls
from tiers.tool_types import Tool, ToolCall, Tooling

_TOOLS = (
    Tool(
        name="search",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1},
                "kind": {"type": "string", "enum": ["file", "folder"]},
            },
            "required": ["path", "limit"],
            "additionalProperties": False,
        },
    ),
    Tool(name="write", parameters={"type": "object", "properties": {"path": {"type": "string"}, "text": {}}}),
)
TOOLING = Tooling(tools=_TOOLS)
_PATHS = ("src", "docs/guide.md", "tests/unit", "README.md", "lib/io.py")


class CallPair(NamedTuple):
    """Two answers' calls, of which the second is right."""

    calls: list[ToolCall]
    reference: list[ToolCall]
    no_worse: bool


def call_pairs(seed: int = 0, each: int = 40) -> list[CallPair]:
    """Return `each` equal calls, in other orders of keys and of calls, and as many that differ in an argument or a tool
    or cannot be made."""
    rng = random.Random(seed)
    return [pair for _ in range(each) for pair in _pairs(rng)]


def calibrate_calls() -> Calibration:
    """Count the judge's verdicts on the generated pairs."""
    counts = {(truth, said): 0 for truth in (True, False) for said in (True, False, None)}
    for pair in call_pairs():
        flawed = flaw_of(pair.calls, TOOLING) is not None
        said = False if flawed else judge_calls(TOOLING, pair.calls, pair.reference).no_worse
        counts[pair.no_worse, said] += 1
    return Calibration(
        judge=NAME,
        true_no_worse=counts[True, True],
        false_worse=counts[True, False],
        true_worse=counts[False, False],
        false_no_worse=counts[False, True],
        abstained=counts[True, None] + counts[False, None],
    )


def _pairs(rng: random.Random) -> list[CallPair]:
    path, other = rng.sample(_PATHS, 2)
    search: dict[str, Any] = {"path": path, "limit": rng.randrange(1, 50), "kind": rng.choice(["file", "folder"])}
    write = {"path": other, "text": "\n".join(rng.sample(_PATHS, 3))}
    reference = [_call("search", search), _call("write", write)]
    rewritten = write | {"text": "\n".join(rng.sample(_PATHS, 4))}
    good = [_call("write", dict(reversed(rewritten.items()))), _call("search", dict(reversed(search.items())))]
    bad = rng.choice(
        (
            [_call("search", search | {"path": other}), reference[1]],
            [_call("search", search | {"limit": search["limit"] + 1}), reference[1]],
            [_call("search", search | {"limit": str(search["limit"])}), reference[1]],
            [reference[0]],
            [_call("find", search), reference[1]],
            [ToolCall(id="x", name="search", arguments=json.dumps(search)[:-1]), reference[1]],
        )
    )
    return [CallPair(good, reference, no_worse=True), CallPair(bad, reference, no_worse=False)]


def _call(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(id="x", name=name, arguments=json.dumps(arguments))
