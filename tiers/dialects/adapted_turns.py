"""The turns of a conversation as the rules of a server take them: where the system may speak, who begins and ends.

Names of tools and ids of calls have the characters and the length that a server takes: the same for the same one.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec

from inference_core.io.files import JSON_ERRORS
from tiers.conversation import FAILED_RESULT, Call, Content, Dialect, Media, Opaque, Result, Turn
from tiers.dialects.chat import SEEN
from tiers.dialects.rules import Names, TurnRules

_DIGEST_CHARS = 8
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def fitting_name(name: str, names: Names) -> str:
    """Return `name` in the characters and length that a server takes: one for each name, always the same."""
    characters, most = names
    clean = re.sub(rf"[^{characters}]", "_", name)
    clean = clean if clean[:1].isalpha() else f"_{clean}"
    return f"{clean[: most - _DIGEST_CHARS - 1]}_{_digest(name, _DIGEST_CHARS)}"


def fitting_id(call_id: str, rules: TurnRules, occurrence: int) -> str:
    """Return an id of a call in the form that a server takes. `occurrence`: how many calls before had the same id."""
    said = f"{call_id}\0{occurrence}" if occurrence else call_id
    if rules.call_id_length:
        return _digest(said, rules.call_id_length)
    return f"call_{_digest(said, 24)}"


def _digest(text: str, length: int) -> str:
    """Letters and digits alone."""
    number = int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=32).digest(), "big")
    digest = ""
    while len(digest) < length:
        number, digit = divmod(number, len(_ALPHABET))
        digest += _ALPHABET[digit]
    return digest


@cache
def fits(names: Names, length: int = 0) -> Callable[[str], Any]:
    """Return what tells of a text whether it is in these characters, and of this `length`, or of any up to the most."""
    characters, most = names
    return re.compile(rf"[{characters}]{{{length or 1},{length or most}}}").fullmatch


OPENING, GO_ON = "(The conversation starts here.)", "Please continue."
"""What a user says where a server wants a turn of the user: before the assistant's first, and after its last."""
NO_RESULT = f"{FAILED_RESULT}the call was interrupted and has no result."
"""The result of a call that has none."""
_JPG = re.compile(r"data:image/jpg(?=[;,])", re.IGNORECASE)
_JPG_TYPE = re.compile(rb'("media_type"\s*:\s*)"image/jpg"', re.IGNORECASE)
_BETWEEN = "\n\n"
_ID_FIELDS = {
    "tool_use": "id",
    "tool_result": "tool_use_id",
    "function_call": "call_id",
    "function_call_output": "call_id",
    "custom_tool_call": "call_id",
    "custom_tool_call_output": "call_id",
}


def adapted_turns(messages: list[Turn], rules: TurnRules, sent_names: dict[str, str], changed: set[str]) -> list[Turn]:
    """Return the conversation as a server with these `rules` takes it: `messages` itself, if it does. `sent_names`:
    of tools, by the caller's. `changed` gets the names of what is changed."""
    turns = messages
    first_turn = turns[0]
    if len(turns) == 1 and first_turn.role == "user" and first_turn.is_text and not first_turn.name:
        return turns
    if [True for turn in turns if turn.media or turn.opaque]:
        turns = _right_types(turns, changed)
    if rules.paired_results:
        turns = _paired(turns, changed)
    if rules.single_calls and [True for turn in turns if len(turn.calls) > 1]:
        turns = _one_by_one(turns, changed)
    if rules.system != "anywhere":
        turns = _placed(turns, rules.system, changed)
    if not rules.blank_answers and any(map(_is_blank, turns)):
        turns = [turn for turn in turns if not _is_blank(turn)]
        changed.add("messages")
    if rules.starts_with_user:
        first = next((index for index, turn in enumerate(turns) if turn.role != "system"), None)
        if first is None and turns:
            # The system alone: its last turn is what is asked.
            turns = [*turns[:-1], msgspec.structs.replace(turns[-1], role="user")]
            changed.add("messages.role")
        elif first is not None and turns[first].role == "assistant":
            turns = [*turns[:first], Turn.of("user", OPENING), *turns[first:]]
            changed.add("messages")
    if rules.alternates:
        turns = _alternating(turns, changed)
    if rules.named_results and [True for turn in turns if turn.role == "tool" and not turn.name]:
        names = {call.id: call.name for turn in turns for call in turn.calls}
        turns = [_with_name(turn, names) for turn in turns]
    if rules.message_names != "any" and [True for turn in turns if turn.name]:
        turns = [_plainly_named(turn, rules, changed) for turn in turns]
    if rules.object_arguments and [True for turn in turns if turn.calls]:
        turns = [_with_objects(turn, changed) for turn in turns]
    if rules.prefill == "refused" and turns and turns[-1].role == "assistant" and not turns[-1].calls:
        turns = [*turns, Turn.of("user", GO_ON)]
        changed.add("messages")
    if rules.answers_results:
        turns = _answered(turns, changed)
    if sent_names or rules.call_ids is not None:
        turns = _named(turns, rules, sent_names, changed)
    return turns


_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]+")
_LONGEST_NAME = 64
_as_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _alternating(turns: list[Turn], changed: set[str]) -> list[Turn]:
    """The conversation with successive turns of the user, or texts of the assistant, as one."""
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last is not None and turn.role == last.role in ("user", "assistant") and not (turn.calls or last.calls):
            merged[-1] = _joined(last, turn)
            changed.add("messages")
        else:
            merged.append(turn)
    return merged


def _with_name(turn: Turn, names: dict[str, str]) -> Turn:
    """The turn with the name of the call whose result it is."""
    if turn.role != "tool" or turn.name:
        return turn
    return msgspec.structs.replace(turn, name=names.get(turn.call_id or "", "function"))


def _plainly_named(turn: Turn, rules: TurnRules, changed: set[str]) -> Turn:
    name = _NOT_IN_NAMES.sub("_", turn.name or "")[:_LONGEST_NAME] if rules.message_names == "plain" else None
    if name == turn.name or (turn.role == "tool" and name is not None):
        return turn
    changed.add("messages.name")
    return msgspec.structs.replace(turn, name=name)


def _with_objects(turn: Turn, changed: set[str]) -> Turn:
    """The turn with arguments of calls that are objects: a server that reads them refuses the whole conversation for
    one call that was cut off."""
    calls = tuple(_with_object(call) for call in turn.calls)
    if all(new is old for new, old in zip(calls, turn.calls, strict=True)):
        return turn
    changed.add("messages.tool_calls.arguments")
    return turn.with_calls(calls)


def _with_object(call: Call) -> Call:
    try:
        _as_object(call.arguments)
    except (ValueError, *JSON_ERRORS):
        arguments = call.parsed_arguments() if call.arguments.strip() else {}
        said = arguments if isinstance(arguments, dict) else {"value": arguments}
        return msgspec.structs.replace(call, arguments=json.dumps(said, ensure_ascii=False))
    return call


def _is_blank(turn: Turn) -> bool:
    blank = turn.role == "assistant" and not (turn.text.strip() or turn.media or turn.calls)
    return blank and not turn.thoughts and all(block.dialect == "chat" for block in turn.opaque)


def _paired(turns: list[Turn], changed: set[str]) -> list[Turn]:
    """The conversation with the results of an assistant's calls right after them, before what the system or the user
    said meanwhile. A call whose result never came has one that says so, unless it is the last turn; a result without
    a call is what the user says."""
    if not _is_broken(turns):
        return turns
    callers: defaultdict[str, deque[int]] = defaultdict(deque)
    results: defaultdict[int, list[Turn]] = defaultdict(list)
    kept: list[tuple[int, Turn]] = []
    for index, turn in enumerate(turns):
        if turn.role != "tool":
            kept.append((index, turn))
            for call in turn.calls:
                callers[call.id].append(index)
        elif waiting := callers.get(turn.call_id or ""):
            results[waiting.popleft()].append(turn)
        else:
            kept.append((index, Turn.of("user", turn.content_blocks)))
    paired: list[Turn] = []
    for index, turn in kept:
        paired += [turn, *results[index]]
        if index < len(turns) - 1:
            missing = Counter(call.id for call in turn.calls)
            missing -= Counter(str(result.call_id) for result in results[index])
            paired += [_interrupted(turn, call_id) for call_id in missing.elements()]
    changed.add("messages")
    return paired


def _one_by_one(turns: list[Turn], changed: set[str]) -> list[Turn]:
    """The conversation with each call in a turn of its own, before its result."""
    split_turns: list[Turn] = []
    results = {turn.call_id: turn for turn in turns if turn.role == "tool"}
    several = {call.id for turn in turns if len(turn.calls) > 1 for call in turn.calls}
    for turn in turns:
        if len(turn.calls) > 1:
            for call, alone in zip(turn.calls, turn.split_calls(), strict=True):
                split_turns.append(alone)
                split_turns += [results[call.id]] if call.id in results else []
        elif turn.role != "tool" or turn.call_id not in several:
            split_turns.append(turn)
    changed.add("messages")
    return split_turns


def _interrupted(turn: Turn, call_id: str) -> Turn:
    """The result of a call of `turn` without one; in the Responses API's form, custom tools have their own."""
    result = Turn.of("tool", NO_RESULT, call_id=call_id)
    custom = [block for block in turn.opaque if block.type == "custom_tool_call"]
    if not any(msgspec.json.decode(block.json, type=dict[str, Any]).get("call_id") == call_id for block in custom):
        return result
    kind = "custom_tool_call_output"
    json = _encode({"type": kind, "call_id": call_id, "output": NO_RESULT})
    return result.with_opaque([Opaque("responses", json, kind)])


def _is_broken(turns: list[Turn]) -> bool:
    """Whether a call has no result right after it, or a result no call right before it."""
    waiting: list[str] = []
    for turn in turns:
        if turn.role != "tool":
            if waiting:
                return True
            waiting = [call.id for call in turn.calls]
        elif turn.call_id in waiting:
            waiting.remove(turn.call_id)
        else:
            return True
    return bool(waiting) and turns[-1].role == "tool"


def _answered(turns: list[Turn], changed: set[str]) -> list[Turn]:
    """The conversation with a turn of the assistant between results and what the user says next."""
    answered: list[Turn] = []
    for turn in turns:
        if turn.role == "user" and answered and answered[-1].role == "tool":
            answered.append(Turn.of("assistant", SEEN))
            changed.add("messages")
        answered.append(turn)
    return answered if len(answered) > len(turns) else turns


def _placed(turns: list[Turn], where: str, changed: set[str]) -> list[Turn]:
    """The conversation with its turns of the system where they may stand: others become turns of the user, at the same
    place, so that what was said before them keeps its meaning, and its place in a cache."""
    roles = [turn.role for turn in turns]
    first = 0
    while where != "none" and first < len(roles) and roles[first] == "system":
        first += 1
    misplaced = "system" in roles[first:]
    if not misplaced and (first < 2 or any(turn.opaque for turn in turns[:first])):
        return turns
    placed = _joined_start(turns[:first])
    for index in range(first, len(turns)):
        turn = turns[index]
        if turn.role == "system" and not (where == "after-user" and _may_stay(turns, index)):
            changed.add("messages.role")
            turn = _as_user(turn)
            if placed and placed[-1].role == "user":
                placed[-1] = _joined(placed[-1], turn)
                continue
        elif turn.role == "user" and index > first and turns[index - 1].role == "system" and placed[-1].role == "user":
            placed[-1] = _joined(placed[-1], turn)
            continue
        placed.append(turn)
    return placed


def _joined_start(turns: list[Turn]) -> list[Turn]:
    """The turns of the system at the start, as one where they are texts."""
    if len(turns) < 2 or any(turn.opaque for turn in turns):
        return list(turns)
    text = _BETWEEN.join(turn.text for turn in turns if turn.text)
    return [Turn.of("system", text, cache_mark=any(turn.cache_mark for turn in turns))]


def _may_stay(turns: list[Turn], index: int) -> bool:
    """Anthropic's rule: right after a user's turn or a tool's result, and before an answer or at the end."""
    after = index == len(turns) - 1 or turns[index + 1].role == "assistant"
    return turns[index - 1].role in ("user", "tool") and after and bool(turns[index].text.strip())


def _as_user(turn: Turn) -> Turn:
    text = f"<system>\n{turn.text}\n</system>"
    said = turn.written("messages")
    if not said:
        return Turn.of("user", text, opaque=turn.opaque, cache_mark=turn.cache_mark)
    marks = [msgspec.json.decode(block.json or b"{}", type=dict[str, Any]).get("cache_control") for block in said]
    block = {"type": "text", "text": text} | ({"cache_control": marks[-1]} if marks[-1] else {})
    return Turn.of("user", text, opaque=[Opaque("messages", _encode(block), "text")], cache_mark=turn.cache_mark)


def _joined(first: Turn, second: Turn) -> Turn:
    """Two turns of the user as one."""
    if first.parts or second.parts:
        joined = first.with_content([*first.content_blocks, *second.content_blocks])
    else:
        joined = first.with_text(_BETWEEN.join(filter(None, [first.text, second.text])))
    fields = [block for block in first.opaque if block.dialect == "chat"]
    dialects = [block.dialect for turn in (first, second) for block in turn.opaque if block.dialect != "chat"]
    said = [*_in_dialect(first, dialects[0]), *_in_dialect(second, dialects[0])] if dialects else []
    joined = joined.with_opaque([*fields, *said])
    return msgspec.structs.replace(joined, cache_mark=first.cache_mark or second.cache_mark)


def _in_dialect(turn: Turn, dialect: Dialect) -> Sequence[Opaque]:
    """What a turn is in a dialect; of one that is in none, its text."""
    text = [Opaque(dialect, _encode({"type": "text", "text": turn.text}), "text")] if turn.text else []
    return turn.written(dialect) or text


def _right_types(turns: list[Turn], changed: set[str]) -> list[Turn]:
    """The conversation with the registered name of the type of JPEG images, which some clients write as `image/jpg`."""
    typed = [_right_type(turn) for turn in turns]
    if all(new is old for new, old in zip(typed, turns, strict=True)):
        return turns
    changed.add("messages.image_url")
    return typed


def _right_type(turn: Turn) -> Turn:
    if any(map(_is_jpg, turn.content_blocks)):
        turn = turn.with_content(map(_right_block, turn.content_blocks))
    if any(block.type != "text" and _JPG_TYPE.search(block.json) for block in turn.opaque):
        turn = turn.with_opaque(
            msgspec.structs.replace(block, json=_JPG_TYPE.sub(rb'\1"image/jpeg"', block.json))
            if block.type != "text"
            else block
            for block in turn.opaque
        )
    return turn


def _is_jpg(block: Content) -> bool:
    url = (block.data or {}).get("url") if isinstance(block, Media) and block.kind == "image" else None
    return isinstance(url, str) and _JPG.match(url) is not None


def _right_block(block: Content) -> Content:
    if not (isinstance(block, Media) and _is_jpg(block)):
        return block
    data = block.data or {}
    return msgspec.structs.replace(block, data=data | {"url": _JPG.sub("data:image/jpeg", data["url"], count=1)})


def _named(turns: list[Turn], rules: TurnRules, sent_names: dict[str, str], changed: set[str]) -> list[Turn]:
    """The conversation with names of tools and ids of calls that the server takes. A result belongs to the earliest
    call of its id that has none yet."""
    taken = None if rules.call_ids is None else fits(rules.call_ids, rules.call_id_length)
    waiting: defaultdict[str, deque[str]] = defaultdict(deque)
    last: dict[str, str] = {}
    seen: defaultdict[str, int] = defaultdict(int)
    renamed: list[Turn] = []
    for turn in turns:
        renewed = turn
        ids: dict[str, deque[str]] = defaultdict(deque)
        if turn.calls:
            calls: list[Call] = []
            for call in turn.calls:
                sent = call.id
                if taken is not None:
                    occurrence = seen[call.id] if rules.unique_call_ids else 0
                    seen[call.id] += 1
                    if occurrence or not taken(call.id):
                        sent = fitting_id(call.id, rules, occurrence)
                waiting[call.id].append(sent)
                ids[call.id].append(sent)
                last[call.id] = sent
                name = sent_names.get(call.name, call.name)
                same = sent == call.id and name == call.name
                calls.append(call if same else msgspec.structs.replace(call, id=sent, name=name))
            if any(new is not old for new, old in zip(calls, turn.calls, strict=True)):
                renewed = turn.with_calls(calls)
        elif turn.call_id is not None and taken is not None:
            call_id = turn.call_id
            queue = waiting.get(call_id)
            sent = queue.popleft() if queue else last.get(call_id, call_id)
            if call_id not in last and not taken(call_id):
                sent = fitting_id(call_id, rules, 0)
            ids[call_id].append(sent)
            if sent != call_id:
                renewed = turn.with_blocks([Result(sent, turn.content_blocks), *turn.opaque])
        if renewed is turn:
            renamed.append(turn)
            continue
        if any(new != old for old, sent_ids in ids.items() for new in sent_ids):
            changed.add("messages.tool_calls.id")
        renamed.append(renewed.with_opaque(_named_block(block, sent_names, ids) for block in turn.opaque))
    return renamed if any(new is not old for new, old in zip(renamed, turns, strict=True)) else turns


def _named_block(block: Opaque, sent_names: dict[str, str], ids: dict[str, deque[str]]) -> Opaque:
    field = _ID_FIELDS.get(block.type)
    if field is None:
        return block
    said = msgspec.json.decode(block.json, type=dict[str, Any])
    queue = ids.get(str(said.get(field)))
    if queue:
        said[field] = queue.popleft() if len(queue) > 1 else queue[0]
    if said.get("name") in sent_names:
        said["name"] = sent_names[said["name"]]
    return msgspec.structs.replace(block, json=_encode(said))


_encode = msgspec.json.Encoder().encode
