"""The request, its caller, its service class and its trace: what every room below the API reads."""
