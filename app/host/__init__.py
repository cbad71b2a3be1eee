"""What the ASGI server lacks: bounds on heads and bodies, deadlines, knowledge of what reached the socket, draining."""
