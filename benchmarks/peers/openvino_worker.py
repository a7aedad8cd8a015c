"""OpenVINO GenAI's continuous batching under closed loops: run by the Python of its own environment, so nothing of this
repository is imported.

Arguments: the model file, threads, assistant tokens of prompt lookup (0: none). Each line of standard input is a load,
{"concurrency": n, "jobs": [[prompt, answer tokens], ...]}. Each line of standard output is what came of it, in seconds:
{"wall", "timings": [{"ttft", "gaps", "e2e", "prompt_tokens", "output_tokens"}, ...]}.
"""

import importlib
import json
import sys
import time
from typing import Any


def closed_loop(
    genai: Any, pipe: Any, jobs: list[tuple[str, int]], concurrency: int, assistant: int
) -> list[dict[str, Any]]:
    """Keep `concurrency` requests in the pipeline, and read their tokens after every step."""
    queue = list(enumerate(jobs))[::-1]
    active: list[Any] = []
    timings: list[dict[str, Any]] = []
    while queue or active:
        while queue and len(active) < concurrency:
            number, (prompt, tokens) = queue.pop()
            config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
            config.apply_chat_template = config.do_sample = False
            if assistant:
                config.num_assistant_tokens, config.max_ngram_size = assistant, 3
            due = time.perf_counter()
            timing: dict[str, Any] = {"ttft": None, "gaps": [], "e2e": 0.0, "prompt": prompt, "output_tokens": 0}
            active.append([pipe.add_request(number, prompt, config), timing, due, due])
        pipe.step()
        now = time.perf_counter()
        for state in list(active):
            handle, timing, due, last = state
            count = 0
            while handle.can_read():
                count += sum(len(output.generated_ids) for output in handle.read().values())
            if count:
                # Tokens of one step come as one piece of text.
                if timing["ttft"] is None:
                    timing["ttft"] = now - due
                else:
                    timing["gaps"].append(now - last)
                timing["output_tokens"] += count
                state[3] = now
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                timing["e2e"] = now - due
                timings.append(timing)
                active.remove(state)
    return timings


def main(model: str, threads: int, assistant: int) -> None:
    """Answer loads until standard input ends."""
    genai: Any = importlib.import_module("openvino_genai")

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads} | ({"prompt_lookup": True} if assistant else {})
    pipe = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
    for line in sys.stdin:
        load = json.loads(line)
        began = time.perf_counter()
        timings = closed_loop(genai, pipe, load["jobs"], load["concurrency"], assistant)
        wall = time.perf_counter() - began
        for timing in timings:
            ids = pipe.get_tokenizer().encode(timing.pop("prompt")).input_ids
            timing["prompt_tokens"] = int(ids.shape[1])
        print(json.dumps({"wall": wall, "timings": timings}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
