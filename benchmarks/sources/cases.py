"""The loads named by the sources, planned with their own figures, and their benchmark table against the formulas."""

import math

import click
import msgspec

from gateway.operations.cli.options import echo_json, json_option, table
from gateway.planning.capacity.capacity import Objectives, Plan, knob_profile, operation, plan
from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.capacity.workload import Workload, per_second

# Source 001, voice bot on Llama 3.1 8B: concurrency -> (tokens per second, requests per second).
_VOICE = {
    "l4": {
        1: (45.66, 0.23), 2: (89.37, 0.45), 4: (153.39, 0.78), 8: (279.88, 1.47), 16: (547.8, 2.77), 32: (925.7, 4.78),
        64: (1164.4, 6.2), 128: (1445.18, 7.69), 256: (1600.81, 8.52),
    },
    "a100": {
        1: (130.05, 0.68), 2: (264.5, 1.35), 4: (437.69, 2.27), 8: (760.49, 3.96), 16: (1343.8, 7.01),
        32: (2287.3, 11.92), 64: (3625.22, 18.89), 128: (4456.51, 23.24), 256: (5188.24, 27.05),
    },
}  # fmt: skip
# Mean answer of that table: its tokens per second over its requests per second are 188 to 199 (SPEC AS-07).
VOICE_OUTPUT_TOKENS = 193
VOICE = Workload(rate=1000, prompt_tokens=1950, output_tokens=VOICE_OUTPUT_TOKENS)
TEN_THOUSAND = Workload(rate=10_000, prompt_tokens=500, output_tokens=50)
FIFTY_MILLION_PER_DAY = 50_000_000
# SPEC RT-10, and a tier's expected answer length in catalogs/datacenter.toml.
MIX = (0.60, 0.20, 0.15, 0.05)
TIERS = (
    ("tier 1, 3B", "llama-3.2-3b/q4_0/l4", 200),
    ("tier 2, 8B", "llama-3.1-8b/awq-int4/a100-40gb", 200),
    ("tier 3, 70B", "llama-3.3-70b/fp8/8xh100", 200),
    ("tier 4, 70B with a chain of thought", "llama-3.3-70b/fp8/8xh100", 822),
)
REFERENCE_PROMPT_TOKENS = 200
PEAK_OVER_MEAN = 2.0
# Source 003: 80 % of 45,000 requests a second on edge nodes of 2,000 each.
EDGE_RATE, EDGE_SHARE, EDGE_NODE_RATE = 45_000, 0.8, 2_000


class VoiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the sources' table: requests per second as stated, from its tokens per second, and from step times."""

    hardware: str
    concurrency: int
    stated_rate: float
    from_tokens: float
    from_step_times: float
    step_itl_s: float

    @property
    def error(self) -> float:
        """Relative error of tokens per second / 193."""
        return self.from_tokens / self.stated_rate - 1

    @property
    def model_error(self) -> float:
        """Relative error of the step times' formula."""
        return self.from_step_times / self.stated_rate - 1


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One load of the sources and its plan."""

    name: str
    source: str
    plans: dict[str, Plan]


def voice_rows() -> list[VoiceRow]:
    """Return the table of source 001, both cards."""
    rows = []
    for hardware, ladder in _VOICE.items():
        profile = replica_profile(f"llama-3.1-8b-voice-{hardware}")
        for concurrency, (tokens, requests) in ladder.items():
            point = operation(profile, VOICE, concurrency)
            rows.append(VoiceRow(
                hardware=hardware, concurrency=concurrency, stated_rate=requests,
                from_tokens=tokens / VOICE_OUTPUT_TOKENS, from_step_times=point.rate, step_itl_s=point.itl_s,
            ))  # fmt: skip
    return rows


def edge_nodes(rate: float = EDGE_RATE, share: float = EDGE_SHARE, node_rate: float = EDGE_NODE_RATE) -> int:
    """Return the nodes that serve `share` of `rate` at `node_rate` each (SPEC AS-04)."""
    return math.ceil(rate * share / node_rate - 1e-9)


def cases() -> list[Case]:
    """Return every load of the sources that can be planned from their figures."""
    knobs = {name: knob_profile(name) for name in ("throughput", "latency", "tail", "cost")}
    seventy = replica_profile("llama-3.3-70b/fp8/8xh100")
    voice = Objectives(ttft_s=0.5, itl_s=1 / 30)
    return [
        Case(
            name="10,000 requests a second of a 70B",
            source="002: chat answers of 50 tokens on 8 H100 per replica; 500 tokens in are our assumption",
            plans={name: plan(one.applied(seventy), TEN_THOUSAND, one.objectives) for name, one in knobs.items()},
        ),
        Case(
            name="50 million requests a day over four tiers",
            source="004: 579 a second on average, split 60/20/15/5; planned for twice the mean",
            plans={tier[0]: _daily(tier, share) for tier, share in zip(TIERS, MIX, strict=True)},
        ),
        Case(
            name="the same without routing: everything on tier 3",
            source="004's comparison",
            plans={TIERS[2][0]: _daily(TIERS[2], 1.0)},
        ),
        Case(
            name="1,000 voice-bot requests a second of an 8B",
            source="001: more than 30 tokens a second each, so an ITL below 33 ms",
            plans={card: plan(replica_profile(f"llama-3.1-8b-voice-{card}"), VOICE, voice) for card in _VOICE},
        ),
    ]


def _daily(tier: tuple[str, str, int], share: float) -> Plan:
    """The plan of a tier that gets a share of the requests of a day, at their peak."""
    rate = per_second(FIFTY_MILLION_PER_DAY) * PEAK_OVER_MEAN * share
    load = Workload(rate=rate, prompt_tokens=REFERENCE_PROMPT_TOKENS, output_tokens=tier[2])
    return plan(replica_profile(tier[1]), load, Objectives(ttft_s=0.5))


@click.command()
@json_option
def source_loads(as_json: bool) -> None:
    """Plan the loads of the sources with their own figures, and compare their table with the formulas."""
    if as_json:
        echo_json({"cases": cases(), "voice_bot": voice_rows(), "edge_nodes": edge_nodes()})
        return
    head = ["for", "replica", "rate", "replicas", "devices", "TTFT ms", "$/month", "$/1k tokens"]
    for case in cases():
        rows = [_plan_cells(label, found) for label, found in case.plans.items()]
        click.echo(f"{case.name}\n  {case.source}\n{table(head, rows)}\n")
    click.echo("voice bot, requests a second: stated by 001, tokens a second / 193, two step times")
    head = ["card", "concurrency", "stated", "tok/s / 193", "error", "step times", "error"]
    rows = [
        [one.hardware, str(one.concurrency), f"{one.stated_rate:.2f}", f"{one.from_tokens:.2f}", f"{one.error:+.1%}",
         f"{one.from_step_times:.2f}", f"{one.model_error:+.1%}"]
        for one in voice_rows()
    ]  # fmt: skip
    click.echo(table(head, rows))
    click.echo(f"\nedge nodes for 80 % of 45,000 requests a second at 2,000 each: {edge_nodes()}")


def _plan_cells(label: str, found: Plan) -> list[str]:
    return [
        label, found.profile, f"{found.rate:,.0f}", f"{found.replicas:,}", f"{found.devices:,}",
        f"{found.each.ttft_s * 1e3:,.0f}", f"{found.usd_per_month:,.0f}", f"{found.usd_per_1k_tokens:.6f}",
    ]  # fmt: skip
