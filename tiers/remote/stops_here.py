"""Stop strings that a server does not take: its answer is cut here, as the server would have cut it."""

from inference_core.tokenization.stop_strings import StopStrings
from tiers.remote.usage_counter import Tally
from tiers.tier import Delta


class StopsHere:
    """Cuts the text of each choice of one answer before the first of `stops`."""

    def __init__(self, stops: tuple[str, ...], tally: Tally, *, include: bool) -> None:
        self._stops, self._tally, self._include = stops, tally, include
        self._choices: dict[int, StopStrings] = {}

    def cut(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas up to the end of each choice; what follows it is not read any more."""
        found: list[Delta] = []
        ended: set[int] = set()
        for delta in deltas:
            if delta.index in ended:
                continue
            choice = self._choices.get(delta.index)
            if choice is None:
                choice = self._choices[delta.index] = StopStrings(self._stops, include=self._include)
            if delta.text:
                delta.text, stop = choice.push(delta.text)
                if stop is not None:
                    delta.tool_calls = []
                    end = Delta(index=delta.index, finish_reason="stop", stop_sequence=stop, at_once=delta.at_once)
                    found += [delta, end]
                    self._tally.unfinished.discard(delta.index)
                    ended.add(delta.index)
                    continue
            elif delta.finish_reason is not None and (held := choice.flush()):
                found.append(Delta(index=delta.index, text=held))
            found.append(delta)
        return found
