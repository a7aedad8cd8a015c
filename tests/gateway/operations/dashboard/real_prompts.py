"""Prompts for the dashboard's tests: real ones if the data folder exists, else the generated tasks."""

import gzip
import json

from classifier.training.data.dataset import FILE, data_folder
from quality.evaluation.task_set import tasks

LONGEST_CHOICE = 500


def real_prompts(count: int) -> list[str]:
    """Every third a sum, the others multiple choice from the whole collection."""
    maths, outcomes = data_folder() / "gsm8k_sample.jsonl", data_folder() / FILE
    if not (maths.is_file() and outcomes.is_file()):
        return [task.prompt for task in tasks(seed=7, per_level=-(-count // 20))][:count]
    with gzip.open(outcomes, "rt") as lines:
        rows = [row for row in map(json.loads, lines) if row["metric"] == "mc"]
        choices = [row["prompt"] for row in rows if len(row["prompt"]) < LONGEST_CHOICE]
    with maths.open() as lines:
        sums = [json.loads(line)["prompt"] for line in lines]
    step = max(1, len(choices) // count)
    return [sums[i] if i % 3 == 0 else choices[i * step] for i in range(min(count, len(sums), len(choices)))]
