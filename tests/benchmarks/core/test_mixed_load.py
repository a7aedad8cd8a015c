"""The mixed load has something for every technique."""

from benchmarks.core.mixed_load import ANSWER_LIMIT, LONG_WORDS, PREFIX_WORDS, mixed_jobs


def test_half_of_it_shares_a_prefix_and_a_sixteenth_is_long():
    prompts = [job.prompt.split() for job in mixed_jobs(3, 64)]

    heads = [" ".join(prompt[:PREFIX_WORDS]) for prompt in prompts if len(prompt) > PREFIX_WORDS]
    assert max(heads.count(head) for head in heads) == 32
    assert sum(len(prompt) == LONG_WORDS for prompt in prompts) == 4


def test_answers_differ_in_length_within_what_they_declare():
    lengths = [job.output_tokens for job in mixed_jobs(3, 640)]

    assert {job.limit for job in mixed_jobs(3, 16)} == {ANSWER_LIMIT}
    assert min(lengths) >= 8
    assert max(lengths) <= ANSWER_LIMIT
    assert 40 < sum(lengths) / len(lengths) < 56
    assert max(lengths) > 10 * min(lengths)


def test_a_seed_gives_the_same_load_and_another_seed_other_prompts():
    assert mixed_jobs(3, 16) == mixed_jobs(3, 16)
    assert not {job.prompt for job in mixed_jobs(3, 16)} & {job.prompt for job in mixed_jobs(4, 16)}
