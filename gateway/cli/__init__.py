"""The `aio` command line: one module per command, imported only when that command runs."""

from gateway.cli.group import LazyGroup

main = LazyGroup(
    name="aio",
    help="AIO: an OpenAI-compatible gateway that answers each request with the cheapest tier that is good enough.",
    commands={
        "init": ("gateway.cli.setup.init:init", "Find your models and write a catalogue of them."),
        "check": ("gateway.cli.setup.check:check", "Ask every tier of the catalogue one question."),
        "serve": ("gateway.cli.serving.serve:serve", "Start the gateway (or one of its roles)."),
        "settings": ("gateway.cli.serving.show_settings:show_settings", "Show the settings with their defaults."),
        "cluster": ("gateway.cli.cluster:cluster", "Cores on a Ray cluster: start, deploy, show, drain."),
        "worker": ("gateway.cli.serving.worker:worker", "Answer lines of batches, without serving the API."),
        "route": ("gateway.cli.route:route", "Show which tier would answer a prompt, and why."),
        "backtest": ("gateway.cli.backtest:backtest", "Show what routing would have done with a log."),
        "cost": ("gateway.cli.planning.cost:cost", "Calculate what a traffic mix costs and saves."),
        "fleet": ("gateway.cli.fleet:fleet", "Predictive scaling: simulate rules, compare pools."),
        "plan": ("gateway.cli.planning.plan:plan", "Calculate replicas and cost for a load and its objectives."),
        "models": ("gateway.cli.planning.models:models", "Show the catalogue: tiers, files, memory."),
        "kv-calc": ("gateway.cli.planning.kv_calc:kv_calc", "Calculate the memory of a KV cache."),
        "triton-config": (
            "gateway.cli.planning.triton_config:triton_config",
            "Describe a tier's model for Triton Inference Server.",
        ),
        "knobs": ("gateway.cli.live.knobs:knobs", "Show and change a running server's live knobs."),
        "reload": ("gateway.cli.live.reload:reload", "Make a running server read its catalogue again."),
        "adapters": ("gateway.cli.live.adapters:adapters", "Train, load and unload LoRA adapters."),
        "quantize": ("gateway.cli.planning.quantize:quantize", "Make a smaller copy of a model: INT4, INT8 or FP8."),
        "quality": ("gateway.cli.quality:quality", "Measure quantised models, judges and experiments."),
        "migrate": ("gateway.cli.serving.migrate:migrate", "Bring the database schema up to date."),
        "retrain": ("gateway.cli.retrain:retrain", "Retrain the classifier from recorded outcomes."),
        "outcomes": ("gateway.cli.outcomes:outcomes", "Import known outcomes as labels."),
        "classifier": ("gateway.cli.classifier:classifier", "Train and evaluate the classifier."),
        "bench": ("gateway.cli.bench:bench", "Measure the core, server processes and tiers."),
        "report": ("gateway.cli.report:report", "Show what was served, what was learned, what routing would save."),
        "keys": ("gateway.cli.access.keys:keys", "Make, show, limit, rotate and revoke API keys."),
        "teams": ("gateway.cli.access.teams:teams", "Make and show teams and their budgets."),
        "admin": ("gateway.cli.access.admin:admin", "Add, show and remove users of the dashboard."),
        "certificates": (
            "gateway.cli.access.certificates:certificates",
            "Make the certificates of cores on several machines.",
        ),
        "new-key": ("gateway.cli.access.new_key:new_key", "Make an API key for the settings, and its hash."),
    },
)
main.params.append(main.version_option())
