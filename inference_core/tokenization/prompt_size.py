"""How many tokens a text has, said before a tokeniser has read it: three answers for three uses.

- The *estimate*, `BYTES_PER_TOKEN` and `TOKENS_PER_MESSAGE`: what is usual. For rates, queues and bills of servers that
  report nothing.
- The *upper bound*: a tokeniser makes at most one token per byte (`tiers.prompt_bounds`). For budgets and contexts.
- The *fitted feature*, `FITTED_CHARS_PER_TOKEN` and `FITTED_TOKENS_PER_MESSAGE`: what versions of the classifier were
  trained with. Another value would change what they predict.
"""

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
"""Of a chat template."""

FITTED_CHARS_PER_TOKEN = 4
FITTED_TOKENS_PER_MESSAGE = 4
