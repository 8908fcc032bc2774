"""The Hub's HTTP API over a Store, as Flask routes. What is asked and answered follows the clients' sources
(huggingface_hub's hf_api.py, _commit_api.py, lfs.py, file_download.py; kernels' hf_hub.py): nothing more is there.

Large files travel by LFS's basic transfer. The Hub's other way, Xet, speaks to a storage service of its own; a client
is told not to use it by HF_HUB_DISABLE_XET=1, huggingface_hub's switch."""

import base64
import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from flask import Flask, Response, jsonify, request, send_file
from werkzeug.exceptions import NotFound
from werkzeug.routing import BaseConverter
from werkzeug.serving import make_server

from tests.hub.faults import Fault
from tests.hub.store import Blob, Refused, Store

TOKEN = "hf_of_the_loopback_hub"
TREE_PAGE = 50  # entries; the Hub pages too, and a variant with its neighbours is more than one page
REPO = "<owner>/<name>"


@dataclass
class Hub:
    """A Hub with its state in `folder`.

    `trusted` are the publishers whose kernels load without trust_remote_code. `faults` are tried in order on each
    request; `requests` notes "METHOD path" of every one that came."""

    folder: Path
    trusted: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.store = Store(self.folder)
        self.server = None

    def start(self, port: int = 0) -> "Hub":
        """Serves on 127.0.0.1 in a thread. Port 0: a free one."""
        self.server = make_server("127.0.0.1", port, application(self), threaded=True)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def environment(self, token: str | None = None) -> dict[str, str]:
        """What a client's process needs in order to reach this Hub and no other."""
        found = {"HF_ENDPOINT": self.endpoint, "HF_HUB_DISABLE_XET": "1"}
        return found | ({"HF_TOKEN": token} if token else {})


class Revision(BaseConverter):
    """A revision in a path: clients write its slashes as %2F, and a path follows it."""

    to_python = staticmethod(unquote)


def keep_quoted_slashes(server):
    """A WSGI server has unquoted the path; of %2F alone it may not."""

    def application(environ, start_response):
        environ["PATH_INFO"] = unquote(environ["RAW_URI"].split("?")[0].replace("%2F", "%252F"))
        return server(environ, start_response)

    return application


def application(hub: Hub) -> Flask:
    app = Flask(__name__)
    app.url_map.converters["revision"] = Revision
    app.wsgi_app = keep_quoted_slashes(app.wsgi_app)
    store = hub.store

    @app.before_request
    def fault():
        hub.requests.append(f"{request.method} {request.path}")
        for each in hub.faults:
            if each.meets(request.method, request.path):
                return each.answer(request, app)
        reads = request.method in ("GET", "HEAD") or re.search("paths-info|validate-yaml", request.path)
        # Where content goes to is a URL that was given to somebody with a token.
        if not reads and not authorized() and "/lfs-content/" not in request.path:
            raise Refused(401, "Invalid username or password.")

    @app.errorhandler(Refused)
    def refused(error: Refused):
        headers = {"X-Error-Message": error.message} | ({"X-Error-Code": error.code} if error.code else {})
        return jsonify(error=error.message), error.status, headers

    @app.errorhandler(NotFound)
    def unknown_route(error: NotFound):
        return jsonify(error=f"the loopback Hub has no {request.method} {request.path}"), 404

    @app.get("/api/whoami-v2")
    def whoami():
        if not authorized():
            raise Refused(401, "Invalid username or password.")
        return jsonify(type="user", name="publisher", orgs=[], auth={"type": "access_token"})

    @app.get("/api/organizations/<name>/overview")
    def organization(name):
        return jsonify(name=name, fullname=name, avatarUrl="", trustedKernelPublisher=name in hub.trusted)

    @app.post("/api/validate-yaml")
    def validate_yaml():
        return jsonify(errors=[], warnings=[])

    @app.post("/api/repos/create")
    def create():
        asked = request.get_json()
        if asked.get("type") != "kernel":
            raise Refused(400, "the loopback Hub has kernel repositories alone")
        repo_id = f"{asked['organization']}/{asked['name']}"
        url = f"{hub.endpoint}/kernels/{repo_id}"
        try:
            store.create(repo_id)
        except Refused as exists:
            return jsonify(error=exists.message, url=url), exists.status
        return jsonify(url=url, name=repo_id, id=repo_id)

    routes_of_a_repository(app, hub)
    routes_of_large_files(app, hub)
    return app


def routes_of_a_repository(app: Flask, hub: Hub) -> None:
    store = hub.store

    @app.get(f"/api/kernels/{REPO}", defaults={"revision": "main"})
    @app.get(f"/api/kernels/{REPO}/revision/<revision:revision>")
    def info(owner, name, revision):
        repository = store.repository(f"{owner}/{name}")
        siblings = [{"rfilename": path} for path in sorted(repository.commits[repository.resolve(revision)].files)]
        return jsonify(
            id=repository.repo_id, author=owner, sha=repository.resolve(revision), private=False, siblings=siblings
        )

    @app.get(f"/api/kernels/{REPO}/refs")
    def refs(owner, name):
        repository = store.repository(f"{owner}/{name}")

        def listed(kind: str, found: dict[str, str]) -> list[dict]:
            return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": oid} for n, oid in found.items()]

        return jsonify(branches=listed("heads", repository.branches), tags=listed("tags", repository.tags), converts=[])

    @app.post(f"/api/kernels/{REPO}/branch/<revision:branch>")
    def create_branch(owner, name, branch):
        repository = store.repository(f"{owner}/{name}")
        with store.lock:
            if branch in repository.branches:
                raise Refused(409, f"Reference already exists: refs/heads/{branch}")
            start = (request.get_json(silent=True) or {}).get("startingPoint", "main")
            repository.branches[branch] = repository.resolve(start)
            store.write(repository)
        return jsonify({})

    @app.delete(f"/api/kernels/{REPO}/branch/<revision:branch>")
    def delete_branch(owner, name, branch):
        repository = store.repository(f"{owner}/{name}")
        with store.lock:
            if repository.branches.pop(branch, None) is None:
                raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            store.write(repository)
        return jsonify({})

    @app.get(f"/api/kernels/{REPO}/tree/<revision:revision>", defaults={"folder": ""})
    @app.get(f"/api/kernels/{REPO}/tree/<revision:revision>/<path:folder>")
    def tree(owner, name, revision, folder):
        repository = store.repository(f"{owner}/{name}")
        files = repository.commits[repository.resolve(revision)].files
        recursive = request.args.get("recursive", "").lower() in ("1", "true")
        entries = list_folder(files, folder.rstrip("/"), recursive)
        if folder and not entries:
            raise Refused(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        at = int(request.args.get("cursor", 0))
        answer = jsonify(entries[at : at + TREE_PAGE])
        if at + TREE_PAGE < len(entries):
            arguments = request.args.to_dict() | {"cursor": str(at + TREE_PAGE)}
            query = "&".join(f"{key}={value}" for key, value in arguments.items())
            answer.headers["Link"] = f'<{request.base_url}?{query}>; rel="next"'
        return answer

    @app.post(f"/api/kernels/{REPO}/paths-info/<revision:revision>")
    def paths_info(owner, name, revision):
        repository = store.repository(f"{owner}/{name}")
        files = repository.commits[repository.resolve(revision)].files
        asked = request.get_json(silent=True) or request.form.to_dict(flat=False)
        return jsonify([entry(path, files[path]) for path in asked["paths"] if path in files])

    @app.post(f"/api/kernels/{REPO}/preupload/<revision:revision>")
    def preupload(owner, name, revision):
        repository = store.repository(f"{owner}/{name}")
        files = repository.commits[repository.resolve(revision)].files
        return jsonify(
            files=[
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".so") else "regular",
                    "shouldIgnore": False,
                    # What create_commit compares with: of a large file its SHA-256.
                    "oid": files[file["path"]].etag if file["path"] in files else None,
                }
                for file in request.get_json()["files"]
            ]
        )

    @app.post(f"/api/kernels/{REPO}/commit/<revision:revision>")
    def commit(owner, name, revision):
        repository = store.repository(f"{owner}/{name}")
        header, changes = None, []
        for line in request.get_data().splitlines():
            item = json.loads(line)
            if item["key"] == "header":
                header = item["value"]
            else:
                changes.append((item["key"], item["value"]))
        if header is None:
            raise Refused(400, "a commit without a header")
        with store.lock:
            if revision not in repository.branches:
                raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
            parent = repository.branches[revision]
            if header.get("parentCommit", parent) != parent:
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            files = dict(repository.commits[parent].files)
            for key, value in changes:
                change(store, files, key, value)
            oid = repository.commit(files, parent, header["summary"])
            repository.branches[revision] = oid
            store.write(repository)
        url = f"{hub.endpoint}/kernels/{repository.repo_id}/commit/{oid}"
        return jsonify(success=True, commitOid=oid, commitUrl=url)

    @app.get(f"/kernels/{REPO}/resolve/<revision:revision>/<path:path>")
    def resolve(owner, name, revision, path):
        repository = store.repository(f"{owner}/{name}")
        oid = repository.resolve(revision)
        if path not in repository.commits[oid].files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        blob = repository.commits[oid].files[path]
        answer = send_file(
            store.content(blob.etag), mimetype="application/octet-stream", etag=blob.etag, conditional=True, max_age=0
        )
        answer.headers["X-Repo-Commit"] = oid
        if blob.sha256:
            answer.headers["X-Linked-Etag"], answer.headers["X-Linked-Size"] = f'"{blob.sha256}"', str(blob.size)
        return answer


def routes_of_large_files(app: Flask, hub: Hub) -> None:
    store = hub.store

    @app.post(f"/kernels/{REPO}.git/info/lfs/objects/batch")
    def batch(owner, name):
        store.repository(f"{owner}/{name}")
        objects = []
        for item in request.get_json()["objects"]:
            if not store.content(item["oid"]).is_file():
                upload = {"href": f"{hub.endpoint}/lfs-content/{item['oid']}"}
                verify = {"href": f"{hub.endpoint}/lfs-verify/{item['oid']}"}
                item = item | {"actions": {"upload": upload, "verify": verify}}
            objects.append(item)
        return jsonify(transfer="basic", objects=objects)

    @app.put("/lfs-content/<oid>")
    def put(oid):
        store.add(request.get_data(), sha256=oid)
        return Response(status=200)

    @app.post("/lfs-verify/<oid>")
    def verify(oid):
        if not store.content(oid).is_file() or store.content(oid).stat().st_size != request.get_json()["size"]:
            raise Refused(404, "not there, or of another size")
        return jsonify({})


def authorized() -> bool:
    return request.headers.get("Authorization") == f"Bearer {TOKEN}"


def change(store: Store, files: dict[str, Blob], key: str, value: dict) -> None:
    """Applies one line of a commit to the tree `files`."""
    path = value["path"]
    if key == "file":
        files[path] = store.add(base64.b64decode(value["content"]))
    elif key == "lfsFile":
        files[path] = store.large(value["oid"], path)
    elif key == "deletedFile":
        if files.pop(path, None) is None:
            raise Refused(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
    elif key == "deletedFolder":
        for each in [file for file in files if file.startswith(path.rstrip("/") + "/")]:
            del files[each]
    else:
        raise Refused(400, f"an unknown change: {key}")


def entry(path: str, blob: Blob) -> dict:
    found = {"type": "file", "path": path, "oid": blob.oid, "size": blob.size}
    if blob.sha256:
        found["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": 128}
    return found


def list_folder(files: dict[str, Blob], folder: str, recursive: bool) -> list[dict]:
    """The entries of a folder, as the Hub lists them: folders and files by name."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, dict] = {}
    for path, blob in files.items():
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts)):
            if depth == 1 or recursive:
                inner = prefix + "/".join(parts[:depth])
                found[inner] = {"type": "directory", "path": inner, "oid": "0" * 40, "size": 0}
        if len(parts) == 1 or recursive:
            found[path] = entry(path, blob)
    return [found[path] for path in sorted(found)]
