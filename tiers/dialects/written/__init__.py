"""What a model writes into its text: calls of tools, thoughts and channels, which are asked for, bound and read."""
