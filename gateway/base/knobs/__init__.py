"""Live knobs: values kept in files that every process follows."""
