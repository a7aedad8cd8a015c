"""A program in place of an inference engine, whose behaviour a test changes while it runs.

`install` puts it into a folder under an engine's name. It reads `FOLDER/script.json` at every request and at its start:
`start_seconds`, `exit_at_start`, `refuse_port`, `garbage`, `ignore_sigterm`, `die_after` (answers), `hang`, `spawn` (a
child that outlives it unless someone ends it), `words`, `hold` (pause in mid-stream while `FOLDER/hold` exists).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class ScriptedEngine:
    """A folder for PATH with the program in it, and its script."""

    def __init__(self, folder: Path, name: str = "llama-server") -> None:
        self.folder = folder
        self.path = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"#!{sys.executable}\n" + Path(__file__).read_text())
        self.path.chmod(0o755)
        self.model = folder / "model.gguf"
        self.model.write_bytes(b"GGUF")
        self._script: dict[str, Any] = {}
        self.say()

    def say(self, **script: Any) -> None:
        """Change parts of the script."""
        self._script |= script
        temporary = self.folder / "script.tmp"
        temporary.write_text(json.dumps(self._script))
        temporary.replace(self.folder / "script.json")

    def environment(self) -> dict[str, str]:
        """The process environment with its folder first on PATH."""
        return {**os.environ, "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"}

    def starts(self) -> list[dict[str, Any]]:
        """Each start of the program so far: its `pid`, `argv` and `env`."""
        lines = self.folder / "starts.jsonl"
        text = lines.read_text() if lines.exists() else ""
        # The last may be half written.
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def running(self) -> list[int]:
        """The process ids of its starts, and of what they spawned, that live."""
        pids = [start["pid"] for start in self.starts()]
        spawned = self.folder / "spawned"
        pids += [int(line) for line in spawned.read_text().split()] if spawned.exists() else []
        return [pid for pid in pids if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


FOLDER = Path(sys.argv[0]).parent
COUNT = [0]


def _script() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((FOLDER / "script.json").read_text())
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        print(f"request {self.path}", flush=True)

    def do_GET(self) -> None:
        script = _script()
        while _script().get("hang"):
            time.sleep(0.05)
        ready = time.monotonic() - BEGAN >= script.get("start_seconds", 0)
        if self.path in ("/health", "/api/version"):
            return self._json(200 if ready else 503, {"status": "ok" if ready else "loading"})
        if "page" in script:
            return self._page(200, script["page"].encode("latin-1"))
        if self.path == "/props":
            return self._json(200, {"default_generation_settings": {"n_ctx": script.get("context", 4096)}})
        if self.path == "/api/ps":
            return self._json(200, {"models": [{"context_length": script.get("context", 4096)}]})
        return self._json(200, {"data": [{"id": "m", "max_model_len": script.get("context", 4096)}]})

    def do_POST(self) -> None:
        script = _script()
        key = os.environ.get("LLAMA_API_KEY")
        if key is not None and self.headers["authorization"] != f"Bearer {key}":
            return self._json(401, {"error": {"message": "Invalid API Key"}})
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if self.path.startswith("/api/"):
            return self._ollama(body)
        while _script().get("hang"):
            time.sleep(0.05)
        COUNT[0] += 1
        words = script.get("words", "one two three").split(" ")
        usage = {"prompt_tokens": 5, "completion_tokens": len(words), "total_tokens": 5 + len(words)}
        if not body.get("stream"):
            message = {"role": "assistant", "content": " ".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._json(200, {"object": "chat.completion", "choices": [choice], "usage": usage})
        else:
            self._stream(words, usage)
        if script.get("die_after") and COUNT[0] >= script["die_after"]:
            os._exit(3)
        return None

    def _stream(self, words: list[str], usage: dict[str, int]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for i, word in enumerate(words):
            if i == 1:
                while (FOLDER / "hold").exists():
                    time.sleep(0.02)
                if (FOLDER / "die").exists():
                    os._exit(4)
            delta = {"content": word if i == 0 else f" {word}"}
            self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, value: Any) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _ollama(self, body: dict[str, Any]) -> None:
        pulled = FOLDER / "pulled"
        if self.path == "/api/show":
            return self._json(200 if pulled.exists() else 404, {"error": "model not found"})
        if self.path == "/api/pull":
            if body["model"] == "no-such-model":
                return self._json(200, {"error": "pull model manifest: file does not exist"})
            pulled.touch()
            self.send_response(200)
            self.send_header("connection", "close")
            self.end_headers()
            for line in ({"status": "pulling", "total": 10, "completed": 5}, {"status": "success"}):
                self.wfile.write(json.dumps(line).encode() + b"\n")
            self.close_connection = True
            return None
        return self._json(200, {"done": True, "done_reason": "load"})

    def _json(self, status: int, value: Any) -> None:
        self._page(status, json.dumps(value).encode())

    def _page(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _main() -> None:
    script = _script()
    with (FOLDER / "starts.jsonl").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ)}) + "\n")
    if script.get("spawn"):
        # In a session of its own, as some engines start their workers.
        sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with (FOLDER / "spawned").open("a") as file:
            file.write(f"{sleeper.pid}\n")
    if script.get("garbage"):
        sys.stdout.buffer.write(b"\x1b[31m\x00\xff\xfe" + b"x" * 100_000 + b"\r50%\r100%\n\x1b]0;title\x07last words\n")
        sys.stdout.flush()
    if script.get("exit_at_start"):
        print("cannot load the model: no memory", flush=True)
        sys.exit(script["exit_at_start"])
    if script.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    argv = sys.argv[1:]
    port = int(argv[argv.index("--port") + 1]) if "--port" in argv else int(os.environ["OLLAMA_HOST"].split(":")[1])
    if script.get("refuse_port") == "first" and len((FOLDER / "starts.jsonl").read_text().splitlines()) == 1:
        print(f"couldn't bind to 127.0.0.1:{port}: Address already in use", flush=True)
        sys.exit(1)
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    BEGAN = time.monotonic()
    _main()
