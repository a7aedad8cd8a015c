"""What routing and answer checks are worth on recorded answers."""
