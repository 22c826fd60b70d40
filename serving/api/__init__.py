"""The HTTP API: routes, their records and errors, the layers around them, and the server process."""
