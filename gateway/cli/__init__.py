"""The `aio` command line: one module per command, imported only when that command runs."""

from gateway.cli.group import LazyGroup

main = LazyGroup(
    name="aio",
    help="AIO: an OpenAI-compatible gateway that chooses the best tier for each request, by quality and price.",
    package="gateway.cli",
    commands={
        "init": (".setup.init:init", "Find your models and write a catalogue of them."),
        "check": (".setup.check:check", "Ask every tier of the catalogue one question."),
        "serve": (".serving.serve:serve", "Start the gateway (or one of its roles)."),
        "settings": (".serving.migrate:show_settings", "Show the settings with their defaults."),
        "cluster": (".cluster:cluster", "Start, deploy, show and stop cores on a Ray cluster."),
        "worker": (".serving.serve:worker", "Answer lines of batches, without serving the API."),
        "route": (".planning.route:route", "Show which tier would answer a prompt, and why."),
        "backtest": (".planning.route:backtest", "Show what routing would have done with a log."),
        "cost": (".planning.plan:cost", "Calculate what a traffic mix costs and saves."),
        "fleet": (".planning.plan:fleet", "Predict the replicas that a cluster's autoscaler should start."),
        "plan": (".planning.plan:plan", "Calculate replicas and cost for a load and its objectives."),
        "models": (".planning.models:models", "Show the catalogue: tiers, files, memory."),
        "kv-calc": (".planning.kv_calc:kv_calc", "Calculate the memory of a KV cache."),
        "triton-config": (
            ".planning.quantize:triton_config",
            "Describe a tier's model for Triton Inference Server.",
        ),
        "launch": (".live.launch:launch", "Start Claude Code, Codex, opencode or aider with the gateway."),
        "knobs": (".live.knobs:knobs", "Show and change a running server's live knobs."),
        "refusals": (".live.tiers:refusals", "Show the parameters that servers refuse."),
        "reload": (".live.tiers:reload", "Make a running server read its catalogue again."),
        "alerts": (".live.tiers:alerts", "Show where a server's alerts go, and test it."),
        "adapters": (".live.tiers:adapters", "Train, load and unload LoRA adapters."),
        "quantize": (
            ".planning.quantize:quantize",
            "Make a smaller copy of a model: INT4, INT8 or FP8.",
        ),
        "quality": (".quality:quality", "Measure quantised models, judges and experiments."),
        "migrate": (".serving.migrate:migrate", "Bring the database schema up to date."),
        "retrain": (".classifier.training:retrain", "Retrain the classifier from recorded outcomes."),
        "outcomes": (".classifier.import_outcomes:outcomes", "Import known outcomes as labels."),
        "classifier": (".classifier:classifier", "Train and evaluate the classifier."),
        "bench": (".planning.bench:bench", "Measure the core, server processes and tiers."),
        "sessions": (".quality.sessions:sessions", "Choose models for runs of agents."),
        "report": (".quality.report:report", "Show whether routing pays: cost, quality, verdict, what would help."),
        "keys": (".access.keys:keys", "Make, show, limit, rotate, pause, revoke and declare API keys."),
        "teams": (".access.teams:teams", "Make and show teams and their budgets."),
        "admin": (".access.teams:admin", "Add, show and remove users of the dashboard."),
        "certificates": (".cluster.deploy:certificates", "Make the certificates of cores on several machines."),
        "new-key": (".access.keys:new_key", "Make an API key for the settings, and its hash."),
    },
)
main.params.append(main.version_option())
