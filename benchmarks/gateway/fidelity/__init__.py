"""What becomes of an agent's requests and answers on the way between three APIs and four kinds of servers."""
