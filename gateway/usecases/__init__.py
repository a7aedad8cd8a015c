"""What operators look at and change, with plain arguments: endpoints, pages and commands call it."""
