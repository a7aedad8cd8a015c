"""Server processes: one or several behind one port, supervised, with messages between them."""
