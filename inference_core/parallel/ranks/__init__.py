"""The processes of a mesh: what every rank executes, and how ranks are started."""
