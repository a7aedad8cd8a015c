"""`python -m benchmarks NAME`: the benchmarks of this repository, which no package ships."""

from gateway.cli.group import LazyGroup

# Where each command is, under benchmarks, and its line in the help.
_COMMANDS = {
    "sweep": ("core.sweep:sweep", "The latency-throughput curve of the core, and its knee."),
    "ablation": ("core.ablation:ablation", "What each technique of the core is worth."),
    "workloads": ("core.speculation:workloads", "Chat, code, JSON and long answers apart, without and with drafts."),
    "limits": ("core.limits:limits", "The most voice bots at a time, or query rewrites a second."),
    "kernels": ("kernels.linear_kernels:kernels", "The kernels against the machine's bounds."),
    "templates": ("core.templates:templates", "Chat templates: which are read, and whose tool calls are read back."),
    "schemas": ("core.schemas:schemas", "JSON schemas: which compile, and whether random answers are valid."),
    "step": ("core.step:step", "Where the time of one step of a model goes."),
    "route": ("gateway.route:route", "CPU and wall-clock time of a routing decision."),
    "stages": ("gateway.stages:stages", "Scheduling, KV blocks, prompt and tokens of an answer, apart."),
    "proxy": ("gateway.proxy:proxy", "What a request through the gateway costs, compared with a peer."),
    "queue": ("gateway.queue:queue", "What the queue of chats adds to a chat."),
    "fidelity": ("gateway.fidelity.matrix:fidelity", "What is lost between agents' clients and providers' servers."),
    "losses": ("gateway.fidelity.losses:losses", "What each dialect keeps of each kind of block of another's."),
    "overview": ("gateway.overview:overview", "What opening the dashboard's overview asks of the database."),
    "start": ("gateway.start:start", "Time to ready of server processes."),
    "soak": (
        "gateway.soak.soak:soak_command",
        "Memory, files and latency of a gateway under mixed traffic for half an hour.",
    ),
    "peers": ("peers.command:peers", "Other engines, other gateways and AIO under the same loads, in turn."),
    "mix": ("gateway.mixed_workload:mix", "Prompts that routing sends to the tiers in given shares."),
    "report": ("report.page:report", "Tables and plots of kept measurements."),
    "device": ("report.device_tables:device", "Tables of what was measured on a card."),
    "sources": ("sources.report:sources", "The sources' tables next to measurements: docs/results/report.md."),
    "claims": (
        "core.batching_steps:claims",
        "Steps under static, dynamic and continuous batches.",
    ),
    "origins": ("sources.origins:origins", "Commit, day and age of each stored measurement."),
    "checklist": (
        "requirements.checklist:checklist_command",
        "The best practices and the requirements, with their evidence.",
    ),
    "compare": ("report.before_after:compare", "Two kept measurements, before and after."),
    "demo": ("replay.commands:demo", "The whole loop with a model that answers here, in two to four minutes."),
    "demo-replay": ("replay.commands:demo_replay", "The whole loop on declared answers, in under two minutes."),
    "replay": ("replay.commands:replay", "The whole gateway in front of recorded answers."),
    "retrainings": ("replay.commands:retrainings", "How often retrainings promote, and what an oracle says."),
    "utility": ("replay.commands:utility", "What routing is worth after so many labels."),
    "sessions": ("sessions.command:sessions", "The rules of sessions on recorded runs."),
    "agents": ("sessions.agents:agents", "Which models serve runs of agents, from few labelled tasks."),
    "ladder": ("ladder.command:ladder", "Train the adapter of the catalogue `ladder`."),
    "ladder-tasks": ("ladder.command:ladder_tasks", "Write the tasks that `aio bench ladder` asks."),
    "cascade": ("cascade.command:cascade", "What cheap answers that agree are worth."),
    "savings": ("cascade.savings:savings", "What cheap answers that agree save on each recorded ladder."),
}

main = LazyGroup(
    name="benchmarks",
    help="Measure parts of AIO on this machine. `aio bench` has the benchmarks that are part of the product.",
    commands={name: (f"benchmarks.{module}", text) for name, (module, text) in _COMMANDS.items()},
)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
