"""Bodies of requests as they come. A client that sends one too slowly is given up, even if it keeps sending."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

BODY_SECONDS: Final = 30.0
"""The time that a body may take in addition to what its bytes take at the least pace."""
LEAST_PACE: Final = 1 << 16
"""The least bytes a second at which a body must arrive."""


async def chunks(request: Request) -> AsyncIterator[bytes]:
    """The pieces of a body. Raises `HTTPException` for one that breaks off or is too slow."""
    left, more, loop = BODY_SECONDS, True, asyncio.get_running_loop()
    while more:
        start = loop.time()
        try:
            async with asyncio.timeout(left):
                message = await request.receive()
        except TimeoutError:
            text = f"expected a body within {BODY_SECONDS:.0f} seconds and one for each {LEAST_PACE} bytes"
            raise HTTPException(408, f"{text}, got a part of it") from None
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "expected the whole body, got a part of it")
        more, data = message.get("more_body", False), message.get("body", b"")
        left += len(data) / LEAST_PACE - (loop.time() - start)
        if data:
            yield data


async def body_of(request: Request, limit: int) -> bytes:
    """A whole body. Raises `HTTPException` for one that is too long or does not come."""
    parts, held = [], 0
    async for data in chunks(request):
        held += len(data)
        if held > limit:
            raise HTTPException(413, f"expected at most {limit} bytes, got more")
        parts.append(data)
    return b"".join(parts)
