"""Models of the Hugging Face hub, from a hub that the test serves."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from suffice.cli import main
from suffice.convert.sources import open_source
from suffice.errors import ConfigError
from suffice.models import folder
from suffice.positions import NoPosition
from suffice.text import Characters
from suffice.text.tokenizer import TEMPLATE
from suffice.utils import hub
from tests.generate.models import SPEC, model

constants = pytest.importorskip(
    "huggingface_hub.constants", reason="huggingface_hub is not installed"
)

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


NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def call(monkeypatch, capfd, tmp_path):
    """Run a command of suffice with a hub and a cache of the test's own, as HF_... name them."""
    hub_session = import_module("huggingface_hub.utils._http")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home"))

    def run(*words, endpoint=NOWHERE, offline=False, token=None):
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        with monkeypatch.context() as patch:
            patch.setattr(constants, "ENDPOINT", endpoint)
            patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            patch.setattr(constants, "HF_HUB_OFFLINE", offline)
            patch.setattr(sys, "argv", ["suffice", *words])
            patch.delenv("HF_TOKEN", raising=False)
            if token:
                patch.setenv("HF_TOKEN", token)
            hub_session.close_session()
            with pytest.raises(SystemExit) as end:
                main()
        return end.value.code or 0, " ".join(capfd.readouterr().err.split())

    yield run
    hub_session.close_session()


def test_a_model_is_fetched_once_and_pinned(served, call, tmp_path):
    endpoint = f"http://127.0.0.1:{served.server_port}"
    out = tmp_path / "mqa"
    convert = ("convert", "hf:team/tiny@v1", "--to", "mqa", "--naive", "--out", str(out))
    code, message = call(*convert, endpoint=endpoint)
    assert code == 0, message
    assert folder.read(out).facts["hub"] == {"repository": "team/tiny", "revision": COMMIT}
    fetched = {path.rpartition("/")[2] for path in served.asked if "/resolve/" in path}
    assert {"model.safetensors", "config.json", "tokenizer.json", TEMPLATE} <= fetched
    assert not fetched & {"pytorch_model.bin", "modeling.py"}
    served.asked.clear()
    again, _ = call(*convert, offline=True, endpoint=endpoint)
    assert (again, served.asked) == (0, [])
    code, message = call("convert", "hf:team/none", "--to", "mqa", endpoint=endpoint)
    assert code == 2
    assert "hf:team/none cannot be fetched" in message


def test_a_folder_is_pushed_only_when_asked(served, call, tmp_path):
    endpoint, out = f"http://127.0.0.1:{served.server_port}", tmp_path / "out"
    export = ("export", str(served.root), "--format", "hf", "--out", str(out))
    assert call(*export, endpoint=endpoint)[0] == 0
    assert not served.pushed
    card = ("--card", "--license", "mit", "--push", "team/new")
    code, message = call(*export, *card, endpoint=endpoint, token="hf_x")
    assert code == 0, message
    assert served.created[0].get("visibility") == "private" or served.created[0]["private"]
    assert served.pushed == {path.name: path.read_bytes() for path in out.iterdir()}
    assert served.cards == [(out / "README.md").read_text()]
    code, message = call(*export, *card, token="hf_x")
    assert code == 2
    assert "cannot be uploaded to team/new" in message


@pytest.mark.parametrize("offline", [True, False])
def test_offline_and_absent_is_one_sentence(call, offline):
    code, message = call("evaluate", "hf:team/tiny", offline=offline)
    assert code == 2
    assert "hf:team/tiny is not in the cache of the hub, and the hub cannot be reached" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("name", ["hf:tiny", "hf:a/b/c", "hf:a/b@", "hf:a/../b", "hf:"])
def test_malformed_references_are_refused(name):
    with pytest.raises(ConfigError, match="is not on the hub"):
        open_source(name)


def test_the_library_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"needs huggingface_hub, .* pip install .*.hub."):
        hub.local("hf:team/tiny")
    assert hub.local("runs/mine") == Path("runs/mine")
