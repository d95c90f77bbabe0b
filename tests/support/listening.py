"""ASGI applications on a real socket, in the test's own event loop."""

import asyncio
import contextlib
import socket

import uvicorn


@contextlib.asynccontextmanager
async def listening(app):
    """Any ASGI application on a free port; gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="off")
    running = uvicorn.Server(config)
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.should_exit = True
        await serving
        listener.close()
