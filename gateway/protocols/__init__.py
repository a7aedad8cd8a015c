"""HTTP and WebSocket as uvicorn speaks them, with bounds."""
