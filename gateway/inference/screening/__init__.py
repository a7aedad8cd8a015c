"""What looks at prompts before a tier may see them, and at answers before a caller may: which prompts are private, and
guardrails. Imported where the catalogue asks for either."""
