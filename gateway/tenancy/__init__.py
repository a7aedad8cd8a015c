"""Keys, teams, budgets and limits: what is stored of them, and what is enforced in memory."""
