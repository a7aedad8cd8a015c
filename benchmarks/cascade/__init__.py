"""What agreement of cheap answers is worth on recorded final answers."""
