"""A sample of answers is drawn, queued and compared with the strongest tier's; users' words and reviews."""
