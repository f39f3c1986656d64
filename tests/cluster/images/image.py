"""Writes container images to standard output, as an OCI archive, which `ctr images import` reads.

    image.py NAME [OPTION...] [--next NAME [OPTION...]]...

    --root FILE          a layer that is a tar archive already
    --upon FILE          the same, where containerd has it from another image; it is large and not read again
    --file FROM=TO       a file, with the mode it has
    --text TO=TEXT       a file with a text, executable if it begins with #!
    --link TO=TARGET     a symbolic link
    --dir PATH=UID       a directory that a user owns
    --user UID, --cwd DIR, --env NAME=VALUE, --entrypoint WORD...

Files, links and directories together are one layer above the others. A layer that images share is there once. The same
input gives the same image.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import signal
import sys
import tarfile
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("name")
    for option in ("root", "upon", "file", "text", "link", "dir", "env"):
        parser.add_argument(f"--{option}", action="append", default=[])
    parser.add_argument("--user", default="0")
    parser.add_argument("--cwd", default="/")
    parser.add_argument("--entrypoint", nargs=argparse.REMAINDER, default=[])
    return parser.parse_args(words)


def pair(text: str) -> tuple[str, str]:
    left, _, right = text.partition("=")
    return left, right


class Layer:
    """What is added to an image file by file."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        self.tar = tarfile.TarFile(fileobj=self.bytes, mode="w", format=tarfile.PAX_FORMAT)
        self.made: set[str] = set()

    def add(self, path: str, kind: bytes, mode: int, content: bytes = b"", owner: int = 0, target: str = "") -> None:
        path = path.strip("/")
        parent = os.path.dirname(path)
        # One that is there already would get another owner and mode.
        if parent and parent not in self.made and parent.split("/")[0] not in ("bin", "etc", "usr"):
            self.add(parent, tarfile.DIRTYPE, 0o755)
        self.made.add(path)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.uid, entry.gid, entry.linkname = kind, mode, owner, owner, target
        entry.size = len(content)
        self.tar.addfile(entry, io.BytesIO(content))

    def done(self) -> bytes:
        self.tar.close()
        return self.bytes.getvalue()


def added(options: argparse.Namespace) -> bytes:
    layer = Layer()
    for path, owner in map(pair, options.dir):
        layer.add(path, tarfile.DIRTYPE, 0o755, owner=int(owner))
    for source, path in map(pair, options.file):
        layer.add(path, tarfile.REGTYPE, Path(source).stat().st_mode & 0o777, Path(source).read_bytes())
    for path, text in map(pair, options.text):
        layer.add(path, tarfile.REGTYPE, 0o755 if text.startswith("#!") else 0o644, text.encode())
    for path, target in map(pair, options.link):
        layer.add(path, tarfile.SYMTYPE, 0o777, target=target)
    return layer.done()


def digest_of(root: Path) -> str:
    """A large file's digest is kept beside it."""
    kept = root.with_suffix(root.suffix + ".sha256")
    if not kept.exists() or kept.stat().st_mtime < root.stat().st_mtime:
        with root.open("rb") as file:
            kept.write_text(hashlib.file_digest(file, "sha256").hexdigest())
    return kept.read_text()


class Archive:
    def __init__(self) -> None:
        self.tar = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")  # noqa: SIM115 (it ends with the process)
        self.names: set[str] = set()

    def put(self, name: str, content: Path | bytes) -> None:
        if name in self.names:
            return
        self.names.add(name)
        entry = tarfile.TarInfo(name)
        if isinstance(content, bytes):
            entry.size = len(content)
            self.tar.addfile(entry, io.BytesIO(content))
            return
        entry.size = content.stat().st_size
        with content.open("rb") as file:
            self.tar.addfile(entry, file)


def blob(archive: Archive, kind: str, content: Path | bytes, digest: str = "") -> dict[str, object]:
    """Writes a part of an image, and returns what others call it by."""
    if isinstance(content, bytes):
        digest, size = hashlib.sha256(content).hexdigest(), len(content)
    else:
        size = content.stat().st_size
    archive.put(f"blobs/sha256/{digest}", content)
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}


def write(archive: Archive, options: argparse.Namespace) -> dict[str, object]:
    """Writes an image and returns its entry in the archive's index."""
    layers = []
    for root in map(Path, options.upon):
        archive.names.add(f"blobs/sha256/{digest_of(root)}")
    for root in map(Path, options.upon + options.root):
        layers.append(blob(archive, "layer.v1.tar", root, digest_of(root)))
    if options.file or options.text or options.link or options.dir:
        layers.append(blob(archive, "layer.v1.tar", added(options)))
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *options.env],
            "User": options.user,
            "WorkingDir": options.cwd,
            "Entrypoint": options.entrypoint,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(archive, "config.v1+json", json.dumps(config).encode()),
        "layers": layers,
    }
    entry = blob(archive, "manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"io.containerd.image.name": f"docker.io/{options.name}"}
    return entry


def main() -> None:
    orders: list[list[str]] = [[]]
    for word in sys.argv[1:]:
        if word == "--next":
            orders.append([])
        else:
            orders[-1].append(word)
    # Who reads may end first; there is nothing to say about that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    archive = Archive()
    archive.put("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
    index = {"schemaVersion": 2, "manifests": [write(archive, arguments(order)) for order in orders]}
    archive.put("index.json", json.dumps(index).encode())
    archive.tar.close()


if __name__ == "__main__":
    main()
