"""Workloads: each kind of request has its own length, prompts and sampling, the same for the same seed."""

import json

import pytest

from benchmarks.core.workloads import (
    MIXES,
    OWN,
    WORKLOADS,
    WorkloadTarget,
    code_prompt,
    own_workload,
    workload,
)
from benchmarks.report.measurement import read_prompts
from tests.gateway.planning.load_test.word_tokenizer import WordTokenizer


class ChatTokenizer(WordTokenizer):
    """One token per word, and a token of its own in front of a message."""

    def encode_chat(self, messages, **extra):
        return [998, *self.encode(messages[0]["content"])]


def jobs(name: str, level: int = 1, **changes):
    given = {"requests": None, "most_tokens": 10_000, "salt": "s"} | changes
    return WORKLOADS[name].jobs(7, level, **given)


def test_the_mixes_have_the_lengths_of_the_sources_and_are_not_pooled():
    assert {name: {job.output_tokens for job in jobs(name)} for name in MIXES} == {
        "chat": {50}, "code": {1000}, "json": {300}, "long": {4096},
    }  # fmt: skip


def test_a_load_has_a_request_for_each_in_flight_and_the_least_of_its_workload():
    assert [len(jobs(name)) for name in MIXES] == [16, 4, 8, 1]
    assert len(jobs("long", level=8)) == 8
    assert [job.output_tokens for job in jobs("long", requests=2, most_tokens=9)] == [9, 9]


@pytest.mark.parametrize("name", [*MIXES, "copy", "open chat"])
def test_a_seed_gives_the_same_requests_and_no_two_share_a_prefix(name):
    made = jobs(name, level=4)

    assert made == jobs(name, level=4)
    assert len({job.salt for job in made}) == len(made)


def test_code_is_of_the_standard_library_and_differs_by_number():
    prompts = {code_prompt(number) for number in range(64)}

    assert len(prompts) == 64
    assert sum("def " in prompt for prompt in prompts) > 32


def test_json_answers_are_bound_by_a_grammar_and_others_have_their_full_length():
    (first, *_) = jobs("json")

    assert first.sampling.grammar is not None
    assert not first.sampling.ignore_eos
    assert all(job.sampling.ignore_eos for name in ("chat", "code", "long") for job in jobs(name))


def test_messages_go_through_the_chat_template_and_code_does_not():
    target = WorkloadTarget(None, ChatTokenizer(), "m")

    chat, code = (target._request(jobs(name)[0]) for name in ("chat", "code"))

    assert (chat.prompt_token_ids[0], code.prompt_token_ids[0] == 998) == (998, False)
    assert (chat.sampling.temperature, chat.sampling.seed, chat.sampling.max_tokens) == (0.7, 7, 50)


def test_prompts_of_ones_own_are_a_workload(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(20)))

    asked = {job.prompt for job in workload(OWN, str(path)).jobs(0, 10, requests=None, most_tokens=50, salt="s")}

    assert asked == {f"question {i}" for i in range(20)}
    assert not own_workload(["a"]).full_length


def test_the_first_prompts_of_a_file_are_those_of_chats_too(tmp_path):
    file = tmp_path / "a.jsonl"
    chats = "".join(json.dumps({"turns": [f"chat {i}", "and?"]}) + "\n" for i in range(3))
    file.write_text(chats + "\n" + json.dumps({"prompt": "question"}))
    assert read_prompts(file) == ["chat 0", "chat 1", "chat 2", "question"]
    assert read_prompts(file, 2) == ["chat 0", "chat 1"]


@pytest.mark.parametrize(("content", "said"), [("", "has no prompts"), ('{"text": "x"}\n', "without `prompt`")])
def test_a_file_without_prompts_is_refused(tmp_path, content, said):
    path = tmp_path / "mine.jsonl"
    path.write_text(content)

    with pytest.raises(ValueError, match=said):
        workload(OWN, str(path))
