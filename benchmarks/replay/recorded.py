"""Ladders from recorded files: marked answers of four models to real prompts, and outcomes of customers' models."""

from pathlib import Path

from benchmarks.replay.ladder import Answer, Ladder, Prompt, declared_tiers, made_answer
from benchmarks.report.measurement import packed_rows

ARENA, CUSTOMERS, ROUTING = "replay_arena.jsonl.gz", "customers.jsonl.gz", "routing_outcomes.jsonl.gz"
# Of each source of customers, four models in ascending order of what they get right.
CUSTOMER_MODELS = {
    "mmlu_pro": ("Phi-3-mini-4k-instruct", "Meta-Llama-3_1-8B-Instruct", "Meta-Llama-3_1-70B-Instruct", "gpt4o"),
    "evouna": ("gpt35", "fid", "chatgpt", "gpt4"),
    "reasoning_gym": (
        "meta-llama_llama-3.3-70b-instruct",
        "anthropic_claude-3.5-sonnet",
        "deepseek_deepseek-r1",
        "openai_o3-mini",
    ),
    "llmrouter": (
        "mistral-7b-instruct-v0.3",
        "gemma-2-9b-it",
        "llama-3.3-nemotron-super-49b-v1",
        "llama-3.1-nemotron-51b-instruct",
    ),
}
# Overlaps of words say little of right and wrong.
_INEXACT = ("f1", "coverage")
# The files have outcomes only; so long are the answers that are made to carry them.
MADE_TOKENS = (120, 140, 160, 200)


def arena(folder: Path) -> Ladder:
    """Prompts of real users with the answers of four models and a judge's marks. Raises `FileNotFoundError`."""
    prompts, models = [], [""] * 4
    for row in packed_rows(folder / ARENA):
        answers = [row["answers"][str(tier)] for tier in range(1, 5)]
        models = [answer["model"] for answer in answers]
        prompts.append(
            Prompt(
                row["id"],
                row["category"],
                row["turns"][0]["content"],
                tuple(Answer(answer["text"], float(answer["score"])) for answer in answers),
            )
        )
    return Ladder("arena", declared_tiers(models), tuple(prompts))


def customers(folder: Path, source: str) -> Ladder:
    """Prompts of one source of customers; texts are made to carry the outcomes. Raises `FileNotFoundError`, and
    `KeyError` for a source that is not among `CUSTOMER_MODELS`."""
    models = CUSTOMER_MODELS[source]
    prompts = {}
    for row in packed_rows(folder / (ROUTING if source == "llmrouter" else CUSTOMERS)):
        outcomes = row["outcomes"]
        if row["source"] != source or any(model not in outcomes for model in models) or row["metric"] in _INEXACT:
            continue
        answers = tuple(
            made_answer(model, row["id"], outcomes[model] >= 0.5, tokens)
            for model, tokens in zip(models, MADE_TOKENS, strict=True)
        )
        prompts[row["prompt"]] = Prompt(row["id"], row["domain"], row["prompt"], answers)
    return Ladder(source, declared_tiers(models), tuple(prompts.values()))
