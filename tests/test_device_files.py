"""Files read straight into device memory: their bytes, what is open when, and every way to fail."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from kvikio_standin import PAGE, memory_of, opened, rows

from gpuload import _native
from gpuload.catalog import Paths
from gpuload.errors import ReadError
from gpuload.readers.device_files import align

SIZES = (10 * PAGE, 7 * PAGE + 123, 5, 0, 33 * PAGE - 1)


def packed(wanted, files) -> tuple[np.ndarray, int]:
    """Requests for (file, offset, nbytes), rounded out, each behind the one before in memory."""
    requests, end = [], 0
    for file, offset, nbytes in wanted:
        first, last = align(offset, nbytes, len(files[file]))
        requests.append((file, int(first), int(last - first), end))
        end += -(-int(last - first) // PAGE) * PAGE
    return rows(*requests), end


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_open", [1, 2, 16])
def test_bytes_are_those_of_the_files(save_bytes, standin, seed, max_open):
    paths, files = save_bytes(*SIZES)
    rng = np.random.default_rng(seed)
    wanted = []
    for file in rng.integers(0, len(files), 40).tolist():
        begin, end = np.sort(rng.integers(0, len(files[file]) + 1, 2)).tolist()
        wanted.append((file, begin, end - begin))
    requests, nbytes = packed(wanted, files)
    kvikio = standin(seed=seed, task_size=3 * PAGE + 5, gds_threshold=2 * PAGE)
    memory = memory_of(nbytes)
    with opened(kvikio, paths, max_open=max_open) as source:
        source.read(requests, memory)
        for (file, offset, n), (_, begin, _, dst) in zip(wanted, requests.tolist(), strict=True):
            got = memory[dst + offset - begin :][:n].numpy()
            np.testing.assert_array_equal(got, files[file][offset : offset + n])
    assert kvikio.max_open <= max_open
    assert max(n for _, _, n in kvikio.reads) <= 3 * PAGE


def test_bytes_that_nobody_asked_for_are_not_written(save_bytes, standin):
    paths, files = save_bytes(*SIZES)
    memory = memory_of(4 * PAGE)
    with opened(standin(), paths) as source:
        source.read(rows((1, 7 * PAGE, 123, PAGE)), memory)
    np.testing.assert_array_equal(memory[PAGE : PAGE + 123].numpy(), files[1][7 * PAGE :])
    memory[PAGE : PAGE + 123] = 0xDB
    assert (memory == 0xDB).all()


def test_all_reads_are_issued_before_the_first_is_waited_for(save_bytes, standin):
    paths, _ = save_bytes(*(16 * PAGE,) * 4)
    kvikio = standin(n_threads=4)
    together = threading.Barrier(4)

    def wait_for_all(path, offset, nbytes):
        together.wait(10)

    kvikio.before_read = wait_for_all
    with opened(kvikio, paths) as source:
        source.read(rows(*((i, 0, 16 * PAGE, 16 * PAGE * i) for i in range(4))), memory_of(1 << 18))


def test_no_read_is_cut_into_tasks_by_kvikio(save_bytes, standin):
    paths, _ = save_bytes(5 * PAGE + 9)
    kvikio = standin(task_size=2 * PAGE)
    with opened(kvikio, paths) as source:
        source.read(rows((0, 0, 5 * PAGE + 9, 0)), memory_of(6 * PAGE))
    assert [read[1:] for read in kvikio.reads] == [
        (0, 2 * PAGE),
        (2 * PAGE, 2 * PAGE),
        (4 * PAGE, PAGE + 9),
    ]


@pytest.mark.parametrize("task_size", [100, 2 * PAGE])
def test_nor_when_its_settings_are_changed_or_odd(save_bytes, standin, task_size):
    paths, _ = save_bytes(5 * PAGE)
    kvikio = standin(task_size=task_size)
    with opened(kvikio, paths) as source:
        kvikio.settings["task_size"] = min(task_size, PAGE)
        source.read(rows((0, 0, 5 * PAGE, 0)), memory_of(5 * PAGE))
    assert sum(n for _, _, n in kvikio.reads) == 5 * PAGE


def test_the_file_that_was_used_longest_ago_is_closed(save_bytes, standin):
    paths, _ = save_bytes(*(PAGE,) * 4)
    kvikio = standin()
    memory = memory_of(PAGE)
    with opened(kvikio, paths, max_open=2) as source:
        for file in (0, 1, 0, 2, 0, 3):
            source.read(rows((file, 0, PAGE, 0)), memory)
        names = [(what, Path(str(path)).stem) for what, path in kvikio.log]
        assert names == [
            ("open", "0"),
            ("open", "1"),
            ("close", "1"),
            ("open", "2"),
            ("close", "2"),
            ("open", "3"),
        ]


def test_calls_from_several_threads(save_bytes, standin):
    paths, files = save_bytes(*(9 * PAGE + 1,) * 5)
    kvikio = standin(task_size=2 * PAGE, gds_threshold=PAGE)
    failed = []

    def run(source, thread):
        try:
            for i in range(8):
                file, memory = (thread + i) % 5, memory_of(10 * PAGE)
                source.read(rows((file, 0, 9 * PAGE + 1, 0)), memory)
                np.testing.assert_array_equal(memory[: 9 * PAGE + 1].numpy(), files[file])
        except BaseException as error:
            failed.append(error)

    with opened(kvikio, paths, max_open=2) as source:
        threads = [threading.Thread(target=run, args=(source, i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert failed == []
    assert kvikio.max_open <= 2


# --- what goes wrong while reading


def raising(path, offset, nbytes):
    raise RuntimeError("cuFile error at:\n  file_handle.cpp:172: IO error")


FAILURES = {
    "an error": (raising, r'got "cuFile error at: file_handle.cpp:172: IO error"; pass io="pread"'),
    "fewer bytes": (lambda path, offset, nbytes: 100, r'got 100; pass io="pread"'),
    "no bytes": (lambda path, offset, nbytes: 0, r'got 0; pass io="pread"'),
}


@pytest.mark.parametrize(("fail", "match"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("nbytes", [2 * PAGE, 8 * PAGE], ids=["at once", "in a thread"])
def test_a_failed_read_is_named_and_the_others_are_waited_for(
    save_bytes, standin, fail, match, nbytes
):
    paths, _ = save_bytes(*(8 * PAGE,) * 6)
    kvikio = standin()
    bad = paths[2]
    kvikio.before_read = lambda path, *where: fail(path, *where) if path == bad else None
    memory = memory_of(6 * nbytes)
    with opened(kvikio, paths, max_open=6) as source:
        with pytest.raises(ReadError, match=rf"expected {nbytes} bytes at byte 0, {match}") as info:
            source.read(rows(*((i, 0, nbytes, i * nbytes) for i in range(6))), memory)
        assert kvikio.writing == []
        assert info.value.filename == bad
        assert info.value.errno == errno.EIO
        assert str(info.value).startswith(f"{bad}: ")
        kvikio.before_read = lambda *_: None
        source.read(rows((2, 0, nbytes, 0)), memory)  # and it goes on working


def test_the_first_of_several_errors_is_raised(save_bytes, standin):
    paths, _ = save_bytes(*(8 * PAGE,) * 4)
    kvikio = standin()
    kvikio.before_read = raising
    with opened(kvikio, paths) as source, pytest.raises(ReadError, match=r"/0\.bin: ") as info:
        source.read(rows(*((i, 0, 8 * PAGE, i * 8 * PAGE) for i in range(4))), memory_of(32 * PAGE))
    assert isinstance(info.value.__cause__, RuntimeError)


def test_after_an_error_nothing_more_is_issued(save_bytes, standin):
    paths, _ = save_bytes(*(8 * PAGE,) * 4)
    kvikio = standin()
    kvikio.before_read = raising
    with opened(kvikio, paths, max_open=1) as source, pytest.raises(ReadError, match=r"/0\.bin: "):
        source.read(rows(*((i, 0, 8 * PAGE, i * 8 * PAGE) for i in range(4))), memory_of(32 * PAGE))
    assert len(kvikio.reads) == 1


def test_a_file_that_shrinks_under_a_read_is_truncated(save_bytes, standin):
    paths, _ = save_bytes(9 * PAGE)
    kvikio = standin()

    def shrink(path, offset, nbytes):
        os.truncate(path, 2 * PAGE + 10)
        raising(path, offset, nbytes)

    kvikio.before_read = shrink
    with (
        opened(kvikio, paths) as source,
        pytest.raises(
            ReadError, match=r"expected 32768 bytes at byte 4096, got 4106; the file was truncated$"
        ),
    ):
        source.read(rows((0, PAGE, 8 * PAGE, 0)), memory_of(8 * PAGE))


def test_reads_in_progress_are_waited_for_when_a_file_does_not_open(save_bytes, standin):
    paths, _ = save_bytes(*(8 * PAGE,) * 3)
    kvikio = standin()
    with opened(kvikio, paths) as source:
        os.unlink(paths[2])
        with pytest.raises(ReadError, match="it was deleted or moved"):
            source.read(
                rows(*((i, 0, 8 * PAGE, i * 8 * PAGE) for i in range(3))), memory_of(24 * PAGE)
            )
        assert kvikio.writing == []
        assert len(kvikio.reads) == 2


# --- what goes wrong while opening


def native_error(path: str, size: int) -> str:
    """What the reader for host memory says about the same file."""
    paths = Paths.of([path])
    files = _native.Files(paths.blob, paths.ends, np.array([size], np.int64), 4, 4)
    with pytest.raises(ReadError, match=re.escape(path)) as info:
        files.resident_share([(0, 0)])
    return str(info.value)


@pytest.mark.parametrize("now", [0, PAGE - 1, PAGE + 1, None], ids=str)
def test_a_file_that_changed_is_named_as_by_the_other_reader(save_bytes, standin, now):
    paths, _ = save_bytes(PAGE)
    if now is None:
        os.unlink(paths[0])
    else:
        os.truncate(paths[0], now)
    want = native_error(paths[0], PAGE)
    with (
        opened(standin(), paths, [PAGE]) as source,
        pytest.raises(ReadError, match=f"^{re.escape(want)}$") as info,
    ):
        source.read(rows((0, 0, PAGE, 0)), memory_of(PAGE))
    assert info.value.filename == paths[0]
    assert info.value.errno == (errno.ENOENT if now is None else errno.EIO)


OPENING = {
    "no descriptors": (errno.EMFILE, "expected two free file descriptors, .* raise `ulimit -n`"),
    "no direct I/O": (errno.EINVAL, "opens files with O_DIRECT, got one that does not; pass io="),
    "not allowed": (errno.EACCES, 'opening the file for cuFile failed, got "Permission denied"'),
    "not known": (0, "opening the file for cuFile failed, got no descriptor with O_DIRECT"),
}


@pytest.mark.parametrize(("code", "match"), OPENING.values(), ids=OPENING)
def test_kvikio_must_not_fall_back_to_host_memory_in_silence(
    save_bytes, standin, monkeypatch, code, match
):
    paths, _ = save_bytes(PAGE)
    kvikio = standin()
    kvikio.has_direct = False
    open_ = os.open

    def direct(path, flags, *rest):
        if code and flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return open_(path, flags & ~os.O_DIRECT, *rest)

    monkeypatch.setattr(os, "open", direct)
    with opened(kvikio, paths) as source, pytest.raises(ReadError, match=match) as info:
        source.read(rows((0, 0, PAGE, 0)), memory_of(PAGE))
    assert info.value.errno == (code or errno.EIO)
