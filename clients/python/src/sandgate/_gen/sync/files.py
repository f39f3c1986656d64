# Generated from _async/files.py by tools/generate.py. Do not edit.
"""Files in a sandbox. Each method is one round trip, and done once also when an answer is lost."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from ..._core import convert, requests, types
from ..._core.errors import ProtocolError
from ..._core.follow import FileWatch
from ..._core.values import Path, new_request_id, path_fields, to_bytes, to_path, to_timestamp
from ..._gen.reasons import FileNotFound
from ...v1 import files_pb2
from ...v1 import sandbox_service_pb2 as service
from .stream import Stream
from .transfer import download_bytes, upload_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from .transport import Transport

# What goes into one call; more goes by transfer.
ONE_CALL = 1 << 20


class Files:
    """The files of a sandbox.

    Relative paths begin at the working directory, `/workspace` unless the template says else.
    Errors are of the classes in `sandgate.errors`, such as `FileNotFound`, which is a `FileNotFoundError` too.
    """

    def __init__(self, transport: Transport, target: requests.Target, view: requests.View | None = None) -> None:
        self._transport = transport
        self._target = target
        self._view = view or requests.View()

    def view(self, root_dir: Path | None = None, user: str | None = None) -> Files:
        """The same files as another sees them: `root_dir` is its `/`, and it acts as `user`."""
        return Files(self._transport, self._target, requests.View(root_dir, user))

    def batch(
        self, ops: Sequence[files_pb2.FileOp], *, stop_on_error: bool = False
    ) -> builtins.list[files_pb2.FileOpResult]:
        """Does up to 1,000 operations in order, in one round trip, and gives the outcome of each.

        Operations and outcomes are messages of the contract (`sandgate.v1.files_pb2`). `sandgate.op_error` tells what
        went wrong with one.
        """
        return self._batch(ops, stop_on_error=stop_on_error)

    def stat(self, path: Path, *, follow: bool = True) -> types.FileInfo:
        """Facts about a path. Without `follow`, a symlink at its end is told as such."""
        op = files_pb2.FileOp(stat=files_pb2.StatOp(**path_fields(path), follow=follow))
        return convert.file_info((self._one(op)).info)

    def exists(self, path: Path) -> bool:
        """Whether there is something at the path."""
        try:
            self.stat(path)
        except FileNotFound:
            return False
        return True

    def list(self, path: Path = ".", *, depth: int = 1) -> builtins.list[types.FileInfo]:
        """Entries of a directory, sorted by path, `depth` levels deep. Symlinks are not followed."""
        entries: builtins.list[types.FileInfo] = []
        op = files_pb2.ListOp(**path_fields(path), depth=depth)
        while True:
            page = (self._one(files_pb2.FileOp(list=op))).list
            entries.extend(convert.file_info(entry) for entry in page.entries)
            if not page.next_page_token:
                return entries
            op.page_token = page.next_page_token

    def read(self, path: Path) -> bytes:
        """A file's content, which must fit into memory."""
        op = files_pb2.ReadOp(**path_fields(path), max_bytes=ONE_CALL)
        result = (self._one(files_pb2.FileOp(read=op))).read
        return self.read_large(path) if result.more_after else result.content

    def read_large(self, path: Path) -> bytes:
        """The same by transfer, without a look at how large it is."""
        return download_bytes(self._transport, self._target, self._view, path)

    def read_text(self, path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
        """A file's content as text. Line ends are left as they are."""
        return (self.read(path)).decode(encoding, errors)

    def read_bytes(self, path: Path, offset: int = 0, length: int = 0, *, max_bytes: int = 0) -> types.ReadResult:
        """A range of bytes, 1 MiB unless `max_bytes` says else, 2 MiB at most. A length of 0 means to the end."""
        window = files_pb2.ByteWindow(offset=offset, length=length)
        op = files_pb2.ReadOp(**path_fields(path), bytes=window, max_bytes=max_bytes)
        return convert.read_result((self._one(files_pb2.FileOp(read=op))).read)

    def read_lines(self, path: Path, first: int = 0, count: int = 0, *, max_bytes: int = 0) -> types.ReadResult:
        """A range of lines, from 0, and how many there are. A count of 0 means to the end.

        It has 1 MiB at most unless `max_bytes` says else, 2 MiB at most, and is cut at the last whole line that fits.
        """
        window = files_pb2.LineWindow(first=first, count=count)
        op = files_pb2.ReadOp(**path_fields(path), lines=window, max_bytes=max_bytes)
        return convert.read_result((self._one(files_pb2.FileOp(read=op))).read)

    def write(
        self,
        path: Path,
        content: str | bytes,
        *,
        write_mode: types.WriteMode | str = types.WriteMode.OVERWRITE,
        parents: bool = True,
        mode: int | None = None,
        expected: types.Version | None = None,
    ) -> types.FileInfo:
        """Makes, replaces or extends a file.

        But for `APPEND` it is atomic: at every moment the path holds the old content or the new, whole. With `expected`
        it is refused with `FileVersionMismatch` unless the file is that version.
        """
        data = to_bytes(content)
        if len(data) > ONE_CALL and types.WriteMode(write_mode) is types.WriteMode.OVERWRITE and expected is None:
            return upload_file(self._transport, self._target, self._view, data, path, mode=mode)
        op = requests.write(path, data, write_mode, mode, expected, parents=parents)
        return convert.file_info((self._one(op)).info)

    def edit(
        self,
        path: Path,
        old: str | bytes,
        new: str | bytes,
        *,
        replace_all: bool = False,
        expected: types.Version | None = None,
    ) -> types.EditResult:
        """Replaces an exact text, atomically, and keeps line ends, mode and owner.

        Raises `EditNoMatch`, or `EditAmbiguous` (its metadata has the `count`) if it occurs more than once.
        """
        result = (self._one(requests.edit(path, old, new, expected, replace_all=replace_all))).edit
        return types.EditResult(result.replacements, convert.file_info(result.info))

    def glob(
        self,
        pattern: str,
        path: Path = "",
        *,
        include_hidden: bool = False,
        include_directories: bool = False,
        limit: int = 0,
    ) -> types.GlobResult:
        """Paths beneath a directory by pattern: `*`, `?`, `**`, `[a-z]`, `{a,b}`; 1,000 unless `limit` says else."""
        op = files_pb2.GlobOp(
            **path_fields(path),
            pattern=pattern,
            include_hidden=include_hidden,
            include_directories=include_directories,
            limit=limit,
        )
        return convert.glob_result((self._one(files_pb2.FileOp(glob=op))).glob)

    def grep(
        self,
        pattern: str,
        path: Path = "",
        *,
        literal: bool = False,
        ignore_case: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        skip_hidden: bool = False,
        honour_ignore_files: bool = False,
        context: int = 0,
        max_per_file: int = 0,
        max_total: int = 0,
    ) -> types.GrepResult:
        """Lines in the files beneath a directory, or in one file, by regular expression (Rust's `regex`) or plain text.

        At most 1,000 matching lines unless `max_total` says else. Binary files are skipped and counted.
        """
        op = files_pb2.GrepOp(
            **path_fields(path),
            pattern=pattern,
            literal=literal,
            ignore_case=ignore_case,
            include=include,
            exclude=exclude,
            skip_hidden=skip_hidden,
            honour_ignore_files=honour_ignore_files,
            context=context,
            max_per_file=max_per_file,
            max_total=max_total,
        )
        return convert.grep_result((self._one(files_pb2.FileOp(grep=op))).grep)

    def mkdir(self, path: Path, *, parents: bool = True, mode: int | None = None) -> types.FileInfo:
        """Makes a directory. With `parents` also those above it, and that it exists already is no error."""
        op = files_pb2.MkdirOp(**path_fields(path), parents=parents, mode=mode)
        return convert.file_info((self._one(files_pb2.FileOp(mkdir=op))).info)

    def move(self, source: Path, target: Path, *, overwrite: bool = False, parents: bool = False) -> types.FileInfo:
        """Renames a file, symlink or directory, to exactly that path."""
        paths = requests.two_paths(source, target)
        op = files_pb2.MoveOp(**paths, overwrite=overwrite, make_parents=parents)
        return convert.file_info((self._one(files_pb2.FileOp(move=op))).info)

    def copy(
        self,
        source: Path,
        target: Path,
        *,
        recursive: bool = False,
        overwrite: bool = False,
        parents: bool = False,
    ) -> types.FileInfo:
        """Copies a file, symlink or, with `recursive`, a tree, to exactly that path."""
        paths = requests.two_paths(source, target)
        op = files_pb2.CopyOp(**paths, recursive=recursive, overwrite=overwrite, make_parents=parents)
        return convert.file_info((self._one(files_pb2.FileOp(copy=op))).info)

    def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False) -> int:
        """Removes a file, symlink or directory, and says how many of them."""
        op = files_pb2.RemoveOp(**path_fields(path), recursive=recursive, missing_ok=missing_ok)
        return (self._one(files_pb2.FileOp(remove=op))).remove.removed

    def touch(self, path: Path, modified: datetime | None = None, *, parents: bool = False) -> types.FileInfo:
        """Makes an empty file, or sets the time of change of what is there."""
        op = files_pb2.TouchOp(**path_fields(path), modified=to_timestamp(modified), make_parents=parents)
        return convert.file_info((self._one(files_pb2.FileOp(touch=op))).info)

    def chmod(self, path: Path, mode: int) -> types.FileInfo:
        """Sets permission bits."""
        op = files_pb2.ChmodOp(**path_fields(path), mode=mode)
        return convert.file_info((self._one(files_pb2.FileOp(chmod=op))).info)

    def symlink(self, path: Path, target: Path, *, overwrite: bool = False, parents: bool = False) -> types.FileInfo:
        """Makes a symbolic link at `path` that says `target`, which is not checked."""
        fields = path_fields(path) | path_fields(target, "target")
        op = files_pb2.SymlinkOp(**fields, overwrite=overwrite, make_parents=parents)
        return convert.file_info((self._one(files_pb2.FileOp(symlink=op))).info)

    def readlink(self, path: Path) -> str:
        """What a symbolic link says."""
        op = files_pb2.ReadlinkOp(**path_fields(path))
        result = (self._one(files_pb2.FileOp(readlink=op))).readlink
        return to_path(result.target, result.target_raw)

    def hash(self, path: Path) -> bytes:
        """SHA-256 of a file's content."""
        op = files_pb2.HashOp(**path_fields(path))
        return (self._one(files_pb2.FileOp(hash=op))).hash.sha256

    def watch(self, path: Path = ".", *, recursive: bool = False) -> Stream[types.FileEvent]:
        """What changes in a directory, or with `recursive` beneath it. `WATCHING` comes first.

        After a lost connection `OVERFLOW` says that changes may have been missed.
        """
        request = service.WatchFilesRequest(
            **self._target.read, **path_fields(path), view=self._view.message, recursive=recursive
        )
        return Stream(self._transport, lambda stub: stub.WatchFiles, FileWatch(request))

    def _batch(
        self, ops: Sequence[files_pb2.FileOp], *, stop_on_error: bool = False, request_id: str | None = None
    ) -> builtins.list[files_pb2.FileOpResult]:
        request = requests.batch(self._target, self._view, ops, stop_on_error=stop_on_error)
        answer = self._transport.repeat(lambda stub: stub.FileOps, request, request_id)
        return builtins.list(answer.results)

    def _one(self, op: files_pb2.FileOp) -> files_pb2.FileOpResult:
        request_id = new_request_id()
        results = self._batch([op], request_id=request_id)
        if len(results) != 1:
            raise ProtocolError("the server's answer has no outcome")
        error = convert.op_error(results[0])
        if error is not None:
            raise error.of_request(request_id)
        return results[0]
