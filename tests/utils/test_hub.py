"""Models of the Hugging Face hub, from a hub that the test serves."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from suffice.convert.sources import open_source
from suffice.errors import ConfigError
from suffice.models import folder
from suffice.positions import NoPosition
from suffice.text import Characters
from suffice.text.tokenizer import TEMPLATE
from suffice.utils import hub
from tests.generate.models import SPEC, model

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """One repository, team/tiny, with the files of `server.root`, at `main` and at `v1`."""

    def log_message(self, *_args):
        """Print nothing."""

    def do_GET(self):
        self.answer(body=True)

    def do_POST(self):
        """Take a new repository and a commit, whose files come in base64, one a line."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.server.created.append(json.loads(content))
            answer = {"url": f"http://{self.headers['Host']}/team/new", "name": "team/new"}
        elif self.path == "/api/validate-yaml":
            self.server.cards.append(json.loads(content)["content"])
            answer = {"errors": [], "warnings": []}
        elif self.path.startswith("/api/models/team/new/preupload/"):
            names = [one["path"] for one in json.loads(content)["files"]]
            files = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            answer = {"files": files}
        else:
            for line in content.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    body = base64.b64decode(row["value"]["content"])
                    self.server.pushed[row["value"]["path"]] = body
            answer = {"commitUrl": f"http://{self.headers['Host']}/team/new/commit/{COMMIT}"}
            answer["commitOid"] = COMMIT
        self.reply(200, json.dumps(answer).encode(), body=True, kind="application/json")

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, *, body):
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        root = self.server.root
        names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        if path in (f"/api/models/team/tiny/revision/{one}" for one in ("main", "v1", COMMIT)):
            info = {"id": "team/tiny", "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}
            self.reply(200, json.dumps(info).encode(), body=body, kind="application/json")
        elif path.startswith(f"/api/models/team/tiny/tree/{COMMIT}"):
            tree = [
                {"type": "file", "path": n, "size": (root / n).stat().st_size, "oid": "0"}
                for n in names
            ]
            self.reply(200, json.dumps(tree).encode(), body=body, kind="application/json")
        elif path.startswith(f"/team/tiny/resolve/{COMMIT}/"):
            content = (root / path.partition(COMMIT + "/")[2]).read_bytes()
            self.reply(200, content, body=body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def reply(self, status, content, *, body, kind="application/octet-stream"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def served(tmp_path):
    """Yield a hub with a model of this library, two files of programs, and its address."""
    root = tmp_path / "team"
    words = Characters("abcdefgh ")
    folder.save(
        root,
        model(replace(SPEC, position=NoPosition()), vocabulary=words.vocabulary_size).float(),
        words,
    )
    (root / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (root / "pytorch_model.bin").write_bytes(b"a pickle")
    (root / "modeling.py").write_text("raise SystemExit")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.root, server.pushed = root, {}
    server.asked, server.created, server.cards = [], [], []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def call(home, *arguments, **environment):
    """Run a command of suffice with a cache of its own."""
    own = {"HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-m", "suffice", *arguments],
        env=os.environ | own | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_model_is_fetched_once_and_pinned(served, tmp_path):
    endpoint = f"http://127.0.0.1:{served.server_port}"
    out, home = tmp_path / "mqa", tmp_path / "home"
    convert = ("convert", "hf:team/tiny@v1", "--to", "mqa", "--naive", "--out", str(out))
    done = call(home, *convert, HF_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    assert folder.read(out).facts["hub"] == {"repository": "team/tiny", "revision": COMMIT}
    fetched = {path.rpartition("/")[2] for path in served.asked if "/resolve/" in path}
    assert {"model.safetensors", "config.json", "tokenizer.json", TEMPLATE} <= fetched
    assert not fetched & {"pytorch_model.bin", "modeling.py"}
    served.asked.clear()
    again = call(home, *convert, HF_HUB_OFFLINE="1", HF_ENDPOINT=endpoint)
    assert (again.returncode, served.asked) == (0, [])
    absent = call(home, "convert", "hf:team/none", "--to", "mqa", HF_ENDPOINT=endpoint)
    assert absent.returncode == 2
    assert "hf:team/none cannot be fetched" in absent.stderr.replace("\n", " ")


def test_a_folder_is_pushed_only_when_asked(served, tmp_path):
    endpoint, out = f"http://127.0.0.1:{served.server_port}", tmp_path / "out"
    export = ("export", str(served.root), "--format", "hf", "--out", str(out))
    assert call(tmp_path, *export, HF_ENDPOINT=endpoint).returncode == 0
    assert not served.pushed
    card = ("--card", "--license", "mit", "--push", "team/new")
    done = call(tmp_path, *export, *card, HF_ENDPOINT=endpoint, HF_TOKEN="hf_x")
    assert done.returncode == 0, done.stderr
    assert served.created[0].get("visibility") == "private" or served.created[0]["private"]
    assert served.pushed == {path.name: path.read_bytes() for path in out.iterdir()}
    assert served.cards == [(out / "README.md").read_text()]
    shut = call(tmp_path, *export, *card, HF_ENDPOINT="http://127.0.0.1:9", HF_TOKEN="hf_x")
    assert shut.returncode == 2
    assert "cannot be uploaded to team/new" in " ".join(shut.stderr.split())


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_offline_and_absent_is_one_sentence(tmp_path, environment):
    done = call(tmp_path, "evaluate", "hf:team/tiny", **environment)
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert "hf:team/tiny is not in the cache of the hub, and the hub cannot be reached" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", ["hf:tiny", "hf:a/b/c", "hf:a/b@", "hf:a/../b", "hf:"])
def test_malformed_references_are_refused(name):
    with pytest.raises(ConfigError, match="is not on the hub"):
        open_source(name)


def test_the_library_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"needs huggingface_hub, .* pip install .*.hub."):
        hub.local("hf:team/tiny")
    assert hub.local("runs/mine") == Path("runs/mine")
