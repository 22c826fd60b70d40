"""Program: FastAPI and ONNX Runtime, put together by hand as well as one file can.

A pool of threads decodes and runs, so the event loop stays free; uploads stay in memory.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, UploadFile  # type: ignore[import-not-found]
from starlette.formparsers import MultiPartParser  # type: ignore[import-not-found]

from benchmarks.serving.rivals.identifier import Identifier
from benchmarks.serving.server_config import read_task

TASK = read_task()
MultiPartParser.spool_max_size = sys.maxsize  # by default a file above 1 MB goes through the disk


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the network before the first request."""
    app.state.identifier = Identifier(TASK)
    app.state.pool = ThreadPoolExecutor(TASK.config.threads)
    yield
    app.state.pool.shutdown(wait=False, cancel_futures=True)


app = FastAPI(lifespan=lifespan)


@app.get("/ready")  # type: ignore[untyped-decorator]
async def ready() -> dict[str, str]:
    """Answers once the network is loaded."""
    return {"status": "ready"}


@app.post("/identify")  # type: ignore[untyped-decorator]
async def identify(image: UploadFile) -> dict[str, Any]:
    """Identifies one picture."""
    picture = await image.read()
    loop = asyncio.get_running_loop()
    answer: dict[str, Any] = await loop.run_in_executor(app.state.pool, app.state.identifier.answer, picture)
    return answer


if __name__ == "__main__":
    uvicorn.run(
        "with_fastapi:app",
        app_dir=str(Path(__file__).parent),
        host="127.0.0.1",
        port=TASK.port,
        workers=TASK.config.workers,
        limit_concurrency=TASK.config.max_in_flight,
        access_log=False,
        log_level="warning",
    )
