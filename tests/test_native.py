"""The native module by itself: wrong arguments are errors, never a crash.

Each call is one that a loader made, with one argument changed, in a process of its own.
"""

from __future__ import annotations

import ast
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import _native, pipeline

STUB = Path(__file__).parents[1] / "gpuload" / "_native.pyi"
I64, U32, U8 = np.int64, np.uint32, np.uint8
HUGE = 2**62


def parameters() -> dict[str, list[str]]:
    """Names of the arguments that make an object of each class."""
    tree = ast.parse(STUB.read_text())
    return {
        node.name: [argument.arg for argument in function.args.args[1:]]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
    }


class Recorded:
    """The native module, but it keeps what its classes were called with."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, object]] = {}
        self.names = parameters()

    def __getattr__(self, name):
        made = getattr(_native, name)
        if name not in self.names:
            return made

        def call(*arguments, **named):
            self.calls[name] = dict(zip(self.names[name], arguments, strict=False)) | named
            return made(*arguments, **named)

        return call


@pytest.fixture(scope="module", params=["mmap"])
def calls(request, tmp_path_factory):
    """What a loader of labelled random crops made its native objects with."""
    directory = tmp_path_factory.mktemp("native")
    for i in range(6):
        np.save(directory / f"{i}.npy", np.full((8, 5), i, np.float32))
    recorded = Recorded()
    with pytest.MonkeyPatch.context() as patch:
        for module in (pipeline, gl.assembly, gl.catalog, gl.window, gl.order, gl.readers.posix):
            patch.setattr(module, "_native", recorded)
        with gl.DataLoader(
            gl.open(directory, labels=np.arange(6)),
            2,
            crop=gl.RandomCrop((7, 4)),  # so large that a batch too many leaves its block
            io=request.param,
            threads=2,
            extras=("index", "start", "crop", "valid"),
        ) as loader:
            list(loader)
    return recorded.calls


def outcome(function) -> str:
    """How a forked child that calls `function` ends: "ok", an exception's name, or a signal."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        result = "ok"
        try:
            function()
        except BaseException as error:
            result = type(error).__name__
        os.write(write, pickle.dumps(result))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return pickle.loads(said) if status == 0 else f"signal {-status}"


def run_all(calls, **changed):
    """Make everything as the loader did, but for what is changed, and take all batches."""

    def make(name, **parts):
        arguments = {**calls[name], **parts, **changed.get(name, {})}
        return getattr(_native, name)(**arguments)

    files, catalog = make("Files"), make("Catalog")
    reader = make("Reader", catalog=catalog, files=files)
    parts = {
        "workers": make("Workers"),
        "reader": reader,
        "windows": make("Windows"),
        "epoch": make("Epoch"),
        "memory": make("BatchMemory"),
        "labels": make("Labels"),
    }
    run = make("Run", **parts)
    while run.next() is not None:
        pass
    run.close()


def test_the_unchanged_calls_work(calls):
    assert outcome(lambda: run_all(calls)) == "ok"


# class, argument -> a value that cannot be right
WRONG = {
    ("Files", "ends"): [np.array([3, 2, 1, 0, -1, -2], I64), np.arange(6) * HUGE, np.zeros(6, I64)],
    ("Files", "sizes"): [np.zeros(5, I64), np.full(6, -1), np.full(6, HUGE), np.zeros(6, I64)],
    ("Files", "paths"): [b""],
    ("Catalog", "file"): [np.full(6, 6, U32), np.full(6, 2**32 - 1, U32), np.arange(5, dtype=U32)],
    ("Catalog", "offset"): [np.full(6, v) for v in (-128, 129, HUGE, -HUGE)],
    ("Catalog", "shape"): [
        np.full((6, 2), v) for v in (-1, 9, 2**31, HUGE)
    ] + [np.full((6, 1), 8), np.full((6, 33), 1), np.full((5, 2), 8)],
    ("Catalog", "flags"): [np.zeros(5, U8)],
    ("Catalog", "dtype"): [-1, 15, 99, 12],
    ("Catalog", "record_nbytes"): [-4, 5000, HUGE],
    ("Catalog", "element_offset"): [-200, 5000, HUGE],
    ("Catalog", "sub_shape"): [[100], [HUGE], [-1], [1] * 31],
    ("Catalog", "sample_axis"): [2, 99],
    ("Catalog", "selected"): [np.array([6]), np.array([-1]), np.array([HUGE])],
    ("Reader", "to"): [-1, 15, 99],
    ("Windows", "kind"): [-1, 4, 99],
    ("Windows", "size"): [[], [3], [9, 2], [3, 6], [-2, 2], [HUGE, HUGE], [3, 2, 1]],
    ("Windows", "per_item"): [0, -1],
    ("Windows", "ends"): [np.array([1]), np.array([-1, -2, -3]), np.array([HUGE])],
    ("Epoch", "shuffle"): [-1, 3],
    ("Epoch", "block"): [0, -1],
    ("Epoch", "blocks_mixed"): [0, -1],
    ("Epoch", "n_samples"): [-1, 7, HUGE],
    ("Epoch", "first"): [-1],
    ("Epoch", "rank"): [-1, 1],
    ("Epoch", "world"): [0, -1],
    ("Epoch", "n_local"): [-1],
    ("Epoch", "batch"): [0, -1, 1000, HUGE],
    ("Epoch", "ends"): [np.array([6]), np.array([4, 2]), np.array([-1]), np.array([HUGE])],
    ("Epoch", "listed"): [np.arange(6), np.array([0])],
    ("BatchMemory", "nbytes"): [0, 1, HUGE],
    ("Labels", "rows"): [b"", b"1"],
    ("Labels", "row_nbytes"): [1, 100, HUGE],
    ("Reader", "raw"): [True],
    ("Run", "columns"): [[], [0], [-1] * 9, [HUGE] * 9, [0, -1, -1, -1, -1, -1, -1, 1024, -1]],
    ("Run", "delivery"): [-1, 1, 2, 3],
    ("Run", "room"): [-1],
    ("Run", "to"): [-1, 1, 12, 15],
    ("Run", "outputs"): [
        [(HUGE, 11, None)],
        [(-64, 11, None)],
        [(0, 14, None)],
        [(0, 99, None)],
        [(0, 11, [HUGE])],
        [(0, 11, [-1])],
    ],
    ("Run", "depth"): [0, -1],
    ("Run", "batches_per_claim"): [0, -1],
    ("Run", "chunks_per_batch"): [0, -1],
    ("Run", "on_error"): [-1, 3],
}  # fmt: skip
CASES = [(*key, value) for key, values in WRONG.items() for value in values]


def shown(value) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.reshape(-1)[:3]}"
    return str(value)


@pytest.mark.parametrize(
    ("name", "argument", "value"), CASES, ids=[f"{n}.{a}={shown(v)}" for n, a, v in CASES]
)
def test_a_wrong_argument_is_an_error_and_no_crash(calls, name, argument, value):
    found = outcome(lambda: run_all(calls, **{name: {argument: value}}))
    assert found in ("ValueError", "TypeError", "IndexError", "ReadError", "MemoryError")
