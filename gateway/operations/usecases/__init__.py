"""What an operator does and sees, for every face alike."""
