"""An HTTP API of the shape of agent-sandbox's python-runtime, written from its published interface, to compare with.

What it does is what that one is documented to do: a command is split into words and run without a shell, in a thread, in
a session of its own, and its output is answered as text when it has ended; a file is uploaded as a form and downloaded
by its path below one directory.
"""

import asyncio
import os
import shlex
import subprocess
from pathlib import Path

from fastapi import FastAPI, HTTPException, UploadFile
from fastapi.responses import FileResponse
from pydantic import BaseModel

BASE = Path(os.environ["SANDBOX_BASE_DIR"]).resolve()
TIMEOUT = 300

app = FastAPI()


class Command(BaseModel):
    command: str


class Outcome(BaseModel):
    stdout: str
    stderr: str
    exit_code: int


def inside(path: str) -> Path:
    whole = (BASE / path.lstrip("/")).resolve()
    if not whole.is_relative_to(BASE):
        raise HTTPException(403, "outside of the base directory")
    return whole


@app.get("/")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/execute")
async def execute(told: Command) -> Outcome:
    def run() -> Outcome:
        done = subprocess.run(
            shlex.split(told.command), capture_output=True, text=True, cwd=BASE, start_new_session=True, timeout=TIMEOUT
        )
        return Outcome(stdout=done.stdout, stderr=done.stderr, exit_code=done.returncode)

    try:
        return await asyncio.to_thread(run)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Outcome(stdout="", stderr=str(error), exit_code=1)


@app.post("/upload")
async def upload(file: UploadFile) -> dict[str, str]:
    path = inside(file.filename or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(await file.read())
    return {"message": f"{file.filename} is there"}


@app.get("/download/{path:path}")
async def download(path: str) -> FileResponse:
    whole = inside(path)
    if not whole.is_file():
        raise HTTPException(404, "no such file")
    return FileResponse(whole, media_type="application/octet-stream")
