"""Speaks to the API server of the test cluster, as far as the cluster's own scripts need it.

    kube.py raw PATH                prints the answer
    kube.py wait NAME=PID=WHAT...   waits for what processes do, or for the end of one: WHAT is an address that answers,
                                    or PATH#CONDITION of an object that is true
    kube.py apply FILE...           server-side apply of each object in YAML files; what they define is served then
    kube.py delete PATH...          deletes objects and waits until they are gone
    kube.py empty GROUP/RESOURCE... deletes what there is of custom resources in all namespaces, and waits until all that
                                    they owned is gone, too

The address is in KUBE_API, the certificates are in the directory KUBE_PKI.
"""

import http.client
import json
import os
import re
import ssl
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0


class Refused(Exception):
    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class Api:
    """One connection, made with the first question."""

    def __init__(self) -> None:
        pki = Path(os.environ["KUBE_PKI"])
        tls = ssl.create_default_context(cafile=pki / "ca.crt")
        tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        address = urllib.parse.urlsplit(os.environ["KUBE_API"])
        self.connection = http.client.HTTPSConnection(address.hostname or "", address.port, timeout=30, context=tls)
        self.kinds: dict[str, list[dict]] = {}

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        try:
            self.connection.request(method, path, body, {"Content-Type": kind})
            response = self.connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise
        if response.status >= 300:
            raise Refused(response.status, said.decode(errors="replace"))
        return said

    def get(self, path: str) -> dict | None:
        try:
            return json.loads(self.ask("GET", path))
        except Refused as refused:
            if refused.status != 404:
                raise
            return None

    def gone(self, path: str) -> bool:
        found = self.get(path)
        return found is None or found.get("items") == []

    def true(self, path: str, condition: str) -> bool:
        found = self.get(path) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return any(each["type"] == condition and each["status"] == "True" for each in conditions)

    def plural(self, version: str, kind: str) -> tuple[str, bool]:
        """The name of a kind in addresses, and whether it is in namespaces."""
        if version not in self.kinds:
            self.kinds[version] = json.loads(self.ask("GET", base(version)))["resources"]
        for resource in self.kinds[version]:
            if resource["kind"] == kind and "/" not in resource["name"]:
                return resource["name"], resource["namespaced"]
        raise LookupError(f"no {kind} in {version}")


def base(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def until(what: str, done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(0.05)


def answers(api: Api, what: str) -> bool:
    try:
        if what.startswith("http"):
            # Some make a certificate for themselves.
            urllib.request.urlopen(what, timeout=2, context=ssl._create_unverified_context()).close()
            return True
        path, _, condition = what.partition("#")
        if condition:
            return api.true(path, condition)
        api.ask("GET", path)
    except (OSError, Refused, http.client.HTTPException):
        return False
    return True


def wait(api: Api, name: str, pid: str, what: str) -> None:
    process = Path("/proc", pid)
    until(f"{name}: {what}", lambda: answers(api, what) or not process.exists())
    if not process.exists():
        raise LookupError(f"{name} has ended")


# === objects ===


def documents(file: str) -> list[str]:
    parts = re.split(r"^---.*$", Path(file).read_text(), flags=re.MULTILINE)
    return [part for part in parts if re.search(r"^kind:", part, re.MULTILINE)]


def field(document: str, name: str, indent: str = "") -> str | None:
    found = re.search(rf"^{indent}{name}: *[\"']?([^\s\"']+)", document, re.MULTILINE)
    return found and found[1]


def apply(api: Api, document: str) -> str:
    """The path of what was applied."""
    version, kind = field(document, "apiVersion"), field(document, "kind")
    metadata = re.search(r"^metadata:\n((?:[ #].*\n|\n)+)", document, re.MULTILINE)
    if not (version and kind and metadata):
        raise ValueError(f"apiVersion, kind and metadata, one below the other: {document}")
    plural, namespaced = api.plural(version, kind)
    space = f"/namespaces/{field(metadata[1], 'namespace', '  ') or 'default'}" if namespaced else ""
    path = f"{base(version)}{space}/{plural}/{field(metadata[1], 'name', '  ')}"
    query = "?fieldManager=test-cluster&force=true"
    api.ask("PATCH", path + query, document.encode(), "application/apply-patch+yaml")
    return path


def apply_all(api: Api, files: list[str]) -> None:
    applied = [apply(api, document) for file in files for document in documents(file)]
    for path in applied:
        if "/customresourcedefinitions/" in path:
            until(f"{path} is served", lambda path=path: api.true(path, "Established"))


def delete(api: Api, path: str) -> None:
    if not api.gone(path):
        api.ask("DELETE", path)
    until(f"{path} is gone", lambda: api.gone(path))


def empty(api: Api, group: str, resource: str) -> None:
    found = api.get(f"/apis/{group}")
    if found is None:
        return
    version = found["preferredVersion"]["groupVersion"]
    collection = f"/apis/{version}/{resource}"
    for item in (api.get(collection) or {"items": []})["items"]:
        metadata = item["metadata"]
        path = f"/apis/{version}/namespaces/{metadata['namespace']}/{resource}/{metadata['name']}"
        # Another may have been quicker.
        if not api.gone(path):
            api.ask("DELETE", path)
    until(f"{collection} is empty", lambda: api.gone(collection))


def owned(api: Api, collection: str, groups: set[str]) -> bool:
    items = (api.get(collection) or {"items": []})["items"]
    owners = [owner["apiVersion"] for item in items for owner in item["metadata"].get("ownerReferences", [])]
    return any(owner.split("/")[0] in groups for owner in owners)


def empty_all(api: Api, resources: list[str]) -> None:
    for each in resources:
        empty(api, *each.split("/"))
    groups = {each.split("/")[0] for each in resources}
    for kind in ("v1/pods", "v1/services", "v1/persistentvolumeclaims", "networking.k8s.io/v1/networkpolicies"):
        collection = f"/api/{kind}" if kind.startswith("v1/") else f"/apis/{kind}"
        until(f"{collection} of theirs are gone", lambda collection=collection: not owned(api, collection, groups))


def main() -> None:
    api = Api()
    match sys.argv[1:]:
        case ["raw", path]:
            sys.stdout.buffer.write(api.ask("GET", path))
        case ["wait", *orders]:
            for order in orders:
                wait(api, *order.split("=", 2))
        case ["apply", *files]:
            apply_all(api, files)
        case ["delete", *paths]:
            for path in paths:
                delete(api, path)
        case ["empty", *resources]:
            empty_all(api, resources)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except (OSError, LookupError, ValueError, Refused) as problem:
        sys.exit(f"error: {problem}")
