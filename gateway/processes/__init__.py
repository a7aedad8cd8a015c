"""Server processes: one or several behind one port, supervised, and what they tell each other."""
