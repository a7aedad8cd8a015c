"""Merges the metrics of several gateway processes into one scrape, with a label for the worker."""

from collections.abc import Mapping


def merged_exposition(by_worker: Mapping[int, bytes]) -> bytes:
    """Merge each worker's exposition into one, with the label `worker` on every series.

    Series of different workers stay separate, because a restarted worker must appear as a counter reset; `sum without
    (worker)` gives the total.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, text in sorted(by_worker.items()):
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, worker))
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(sample: str, worker: int) -> str:
    """A sample line's name ends at its labels or at its value."""
    end = min(place for place in (sample.find("{"), sample.find(" ")) if place >= 0)
    label = f'worker="{worker}"'
    if sample[end] == " ":
        return f"{sample[:end]}{{{label}}}{sample[end:]}"
    comma = "" if sample[end + 1] == "}" else ","
    return f"{sample[:end]}{{{label}{comma}{sample[end + 1 :]}"
