"""What uvicorn lacks: limits for heads and bodies, deadlines, knowing what reached the socket, WebSockets, draining."""
