"""One adapter that makes four tiers of a small model: tasks with checkable answers, chat, training, measuring."""
