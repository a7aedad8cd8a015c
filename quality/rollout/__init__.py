"""A trained version is judged, tried, promoted, watched and rolled back."""
