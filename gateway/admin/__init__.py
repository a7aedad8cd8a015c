"""The administration by resource: structs, functions, endpoints and pages of a noun in one file."""
