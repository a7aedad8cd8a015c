"""Tool calling: present tools to a model, constrain its calls by a grammar, and parse them."""
