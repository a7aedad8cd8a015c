"""A real nginx before a gateway, for the tests that need one; they are skipped where it is not installed."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.polling import until
from tests.ports import held_port

_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ return 418; }}
    location {place} {{
      proxy_pass {upstream};
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Proto $scheme;
      {more}
    }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, place: str, upstream: str, more: str = "") -> Iterator[str]:
    """Serve `upstream` at the location `place`, and nothing else; gives nginx's URL."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed: nothing was served behind it")
    folder.mkdir()
    held = held_port()
    port = held.getsockname()[1]
    configuration = folder / "nginx.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, port=port, place=place, upstream=upstream, more=more))
    process = subprocess.Popen([program, "-c", str(configuration), "-p", str(folder), "-e", str(folder / "error.log")])

    def listens() -> bool:
        assert process.poll() is None, (folder / "error.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        held.close()
