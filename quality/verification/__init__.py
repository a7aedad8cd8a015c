"""Sample answers, queue them, and compare them with the strongest tier's; user feedback and reviews."""
