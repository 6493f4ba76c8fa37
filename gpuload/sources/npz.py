"""NPZ files: the header of one member of each in, where its data lie out. Data are not read here,
and nothing is ever unpickled.

A stored member is an NPY file at a known byte of the archive. Of a deflated one, only the beginning
is inflated here.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from gpuload.catalog import Catalog, Ints, Paths
from gpuload.errors import FormatError, GpuloadError
from gpuload.sources import formats
from gpuload.sources.headers import Headers, Status, empty_headers
from gpuload.sources.inflated import Deflated, Inflated

_THREADS_FROM = 16  # files: for fewer, threads are not worth their start
_FIRST_NBYTES = 512  # holds nearly every header
_MOST_HEADER = 1 << 20
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_KINDS = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA"}
_ENCRYPTED = 0x1  # of flag_bits
# APPNOTE.TXT 4.3.7: signature, what the directory tells as well, lengths of name and extra field.
_LOCAL = struct.Struct("<4s22sHH")


@dataclass(frozen=True, slots=True)
class Member:
    """Where one member lies: its bytes are [offset, offset + stored_nbytes) of the file."""

    key: str
    offset: int
    stored_nbytes: int
    nbytes: int
    crc: int | None  # None: as stored
    file_nbytes: int

    @property
    def is_deflated(self) -> bool:
        return self.crc is not None


Prefix = Callable[[int], bytes]  # the first bytes of a member, as many as asked for if there are


def scan(
    paths: Sequence[str], keys: Sequence[str | None], *, threads: int
) -> tuple[Headers, list[Member | None]]:
    """Find one array in each archive and read its header. An NPY file is taken as it is.

    Args:
        keys: of each file: the name of the member; None for the only one there is.

    Returns:
        One row per file, named "file::key" where that is known, with offsets and sizes in the
        member; and where the members lie. What is wrong with a file is in `problems`.
    """
    pairs = list(zip(paths, keys, strict=True))
    if len(pairs) < _THREADS_FROM:
        rows = [_scan_one(path, key) for path, key in pairs]
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="gpuload-npz") as pool:
            rows = list(pool.map(lambda pair: _scan_one(*pair), pairs, chunksize=16))
    members = [row.member for row in rows]
    names = [_shown(path, m.key if m else "") for path, m in zip(paths, members, strict=True)]
    headers = empty_headers(Paths.of(names))
    for i, row in enumerate(rows):
        headers.status[i], headers.version[i] = row.status, row.version
        headers.offset[i], headers.nbytes[i] = row.offset, row.nbytes
        if row.text is not None:
            headers.texts[i] = row.text
        if row.problem is not None:
            headers.problems[i] = row.problem
    return headers, members


def place_members(
    catalog: Catalog, paths: Sequence[str], members: Sequence[Member | None], rows: Ints
) -> Catalog:
    """The catalog with the places of members in their archives.

    Args:
        catalog: as the members' headers say, one array for each of `rows`.
        paths, members: of all files that were scanned.
    """
    found = [member for row in rows.tolist() if (member := members[row]) is not None]
    names = [paths[row] for row in rows.tolist()]
    deflated = [
        Deflated(path, m.key, m.offset, m.stored_nbytes, m.nbytes, m.crc, m.file_nbytes)
        if m.crc is not None
        else None
        for path, m in zip(names, found, strict=True)
    ]
    begins = np.array([0 if m.is_deflated else m.offset for m in found], np.int64)
    sizes = [m.nbytes if m.is_deflated else m.file_nbytes for m in found]
    return replace(
        catalog,
        paths=Paths.of(names),
        sizes=np.array(sizes, np.int64),
        offset=catalog.offset + begins,
        contents=Inflated(deflated) if any(deflated) else None,
    )


@dataclass(slots=True)
class _Row:
    """What one file gives to Headers."""

    status: Status = Status.TOLD
    version: int = 0
    offset: int = 0
    nbytes: int = 0
    text: bytes | None = None
    member: Member | None = None
    problem: GpuloadError | None = None


def _scan_one(path: str, key: str | None) -> _Row:
    try:
        with open(path, "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            begins = file.read(formats.MAGIC_NBYTES)
            if formats.named(begins) == "NPY" and key is None:
                member = Member("", 0, nbytes, nbytes, None, nbytes)
            else:
                member = _find_member(file, path, key, begins, nbytes)
            row = _read_header(_prefix(file.fileno(), member), member.nbytes)
    except OSError as error:
        return _Row(problem=formats.not_readable(path, error))
    except GpuloadError as error:
        return _Row(problem=error)
    except zlib.error as error:
        reason = f"{path}::{member.key}: expected a deflated member, got damaged data ({error})"
        return _Row(problem=FormatError(reason))
    row.member = member
    return row


def _find_member(file: IO[bytes], path: str, key: str | None, begins: bytes, nbytes: int) -> Member:
    name = formats.named(begins)
    if name == "NPY":
        raise FormatError(
            f"{path}: expected an NPZ file for the key {key!r}, got an NPY file; leave out the key"
        )
    if name != "NPZ":
        foreign = f"a file of {nbytes} bytes that is not one; save it with numpy.savez"
        got = formats.HDF5 if name == "HDF5" else foreign
        raise FormatError(f"{path}: expected an NPZ file, got {got}")
    try:
        with zipfile.ZipFile(file) as archive:  # reads the directory at its end
            members = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise FormatError(
            f"{path}: expected an NPZ file, got {nbytes} bytes without a directory of members "
            f"({error}); the file was truncated or is not written yet"
        ) from None
    info = _choose(members, path, key)
    return _locate(file.fileno(), path, info, nbytes)


def _choose(members: dict[str, zipfile.ZipInfo], path: str, key: str | None) -> zipfile.ZipInfo:
    arrays = {name.removesuffix(".npy"): name for name in members if name.endswith(".npy")}
    if key is not None:
        # numpy.load takes both spellings.
        name = arrays.get(key, key if key in arrays.values() else None)
        if name is None:
            raise FormatError(f"{path}: expected a key {key!r}, got {_listed(arrays, members)}")
        return members[name]
    if not arrays:
        raise FormatError(f"{path}: expected an array, got {_listed(arrays, members)}")
    if len(arrays) > 1:
        raise FormatError(
            f"{path}: expected one array, got keys {_keys(arrays)}; pass key= one of them"
        )
    return members[next(iter(arrays.values()))]


def _listed(arrays: dict[str, str], members: dict[str, zipfile.ZipInfo]) -> str:
    if arrays:
        return f"keys {_keys(arrays)}"
    return f"an archive of {len(members)} other files" if members else "an empty archive"


def _keys(arrays: dict[str, str]) -> str:
    names = list(arrays)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"{names[:12]}{more}"


def _locate(descriptor: int, path: str, info: zipfile.ZipInfo, file_nbytes: int) -> Member:
    """Where the bytes of a member begin: its own header may be of another length than the
    directory's."""
    key = info.filename.removesuffix(".npy")
    name = _shown(path, key)
    if info.flag_bits & _ENCRYPTED:
        raise FormatError(f"{name}: expected a plain member, got an encrypted one")
    if info.compress_type not in (_STORED, _DEFLATED):
        kind = _KINDS.get(info.compress_type, str(info.compress_type))
        raise FormatError(
            f"{name}: expected a member that is stored or deflated, got compression {kind}; save "
            "it with numpy.savez or numpy.savez_compressed"
        )
    local = os.pread(descriptor, _LOCAL.size, info.header_offset)
    if len(local) < _LOCAL.size or not local.startswith(b"PK\3\4"):
        raise FormatError(
            f"{name}: expected a member at byte {info.header_offset}, got none; the file is damaged"
        )
    _, _, name_nbytes, extra_nbytes = _LOCAL.unpack(local)
    offset = info.header_offset + _LOCAL.size + name_nbytes + extra_nbytes
    stored = info.compress_type == _STORED
    is_whole = not stored or info.compress_size == info.file_size
    if not is_whole or offset + info.compress_size > file_nbytes:
        raise FormatError(
            f"{name}: expected {info.compress_size} bytes at byte {offset}, got a file of "
            f"{file_nbytes} bytes; the file is damaged"
        )
    crc = None if stored else info.CRC
    return Member(key, offset, info.compress_size, info.file_size, crc, file_nbytes)


def _shown(path: str, key: str) -> str:
    return f"{path}::{key}" if key else path


def _prefix(descriptor: int, member: Member) -> Prefix:
    if not member.is_deflated:
        return lambda n: os.pread(descriptor, min(n, member.nbytes), member.offset)

    def inflate(n: int) -> bytes:
        # Deflate adds at most 5 bytes to each 16 KiB that it cannot shrink.
        packed = os.pread(descriptor, min(n + n // 1024 + 512, member.stored_nbytes), member.offset)
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, n)

    return inflate


def _read_header(prefix: Prefix, nbytes: int) -> _Row:
    """The header of an NPY file by its first bytes, as csrc/npy.cpp reads it."""
    head = prefix(_FIRST_NBYTES)
    if not head:
        return _Row(Status.CUT, nbytes=nbytes)
    if not head.startswith(formats.NPY[: len(head)]):
        return _Row(Status.NO_MAGIC, nbytes=nbytes)
    if len(head) < 10:
        return _Row(Status.CUT, nbytes=nbytes)
    version = head[6] << 8 | head[7]
    if version not in (0x100, 0x200, 0x300):
        return _Row(Status.BAD_VERSION, version, nbytes=nbytes)
    begin = 10 if head[6] == 1 else 12  # a little-endian uint16 in version 1, uint32 after
    end = begin + int.from_bytes(head[8:begin], "little")
    if len(head) < begin or end > nbytes:
        return _Row(Status.CUT, version, end, nbytes)
    if end - begin > _MOST_HEADER:
        return _Row(Status.TOO_LONG, version, end, nbytes)
    if end > len(head):
        head = prefix(end)
    if len(head) < end:
        return _Row(Status.CUT, version, end, nbytes)
    return _Row(Status.OTHER, version, end, nbytes, head[begin:end])
