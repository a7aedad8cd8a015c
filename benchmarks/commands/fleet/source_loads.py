"""`python -m benchmarks source-loads`: the loads of the sources, planned, and their table against the formulas."""

import click

from benchmarks.fleet.cases import cases, edge_nodes, voice_rows
from gateway.operations.cli.options import echo_json, json_option, table
from gateway.planning.capacity.capacity import Plan


@click.command()
@json_option
def source_loads(as_json: bool) -> None:
    """Plan the loads of the sources with their own figures, and compare their table with the formulas."""
    if as_json:
        echo_json({"cases": cases(), "voice_bot": voice_rows(), "edge_nodes": edge_nodes()})
        return
    for case in cases():
        click.echo(f"{case.name}\n  {case.source}")
        rows = [_plan_cells(label, found) for label, found in case.plans.items()]
        click.echo(
            table(["for", "replica", "rate", "replicas", "devices", "TTFT ms", "$/month", "$/1k tokens"], rows) + "\n"
        )
    click.echo("voice bot, requests a second: stated by 001, tokens a second / 193, two step times")
    head = ["card", "concurrency", "stated", "tok/s / 193", "error", "step times", "error"]
    click.echo(
        table(
            head,
            [
                [
                    row.hardware,
                    str(row.concurrency),
                    f"{row.stated_rate:.2f}",
                    f"{row.from_tokens:.2f}",
                    f"{row.error:+.1%}",
                    f"{row.from_step_times:.2f}",
                    f"{row.model_error:+.1%}",
                ]
                for row in voice_rows()
            ],
        )
    )
    click.echo(f"\nedge nodes for 80 % of 45,000 requests a second at 2,000 each: {edge_nodes()}")


def _plan_cells(label: str, found: Plan) -> list[str]:
    return [
        label,
        found.profile,
        f"{found.rate:,.0f}",
        f"{found.replicas:,}",
        f"{found.devices:,}",
        f"{found.each.ttft_s * 1e3:,.0f}",
        f"{found.usd_per_month:,.0f}",
        f"{found.usd_per_1k_tokens:.6f}",
    ]
