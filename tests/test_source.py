"""Source: parts of it, what it says of itself, and its way to other processes."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuload as gl


@pytest.fixture
def ten(tmp_path):
    """Ten files of shape (2, 3), all values of file i are i; label 10 * i."""
    (tmp_path / "ten").mkdir()
    for i in range(10):
        np.save(tmp_path / "ten" / f"{i}.npy", np.full((2, 3), i, np.float32))
    return gl.open(tmp_path / "ten", labels=10 * np.arange(10))


@pytest.fixture
def rows(tmp_path):
    """Rows 0..7 of shape (2,) in files of 3 and 5 rows."""
    table = np.repeat(np.arange(8.0), 2).reshape(8, 2)
    np.save(tmp_path / "a.npy", table[:3])
    np.save(tmp_path / "b.npy", table[3:])
    return gl.open([tmp_path / "a.npy", tmp_path / "b.npy"], sample_axis=0)


def numbers(source: gl.Source) -> list[int]:
    return [int(item[0].reshape(-1)[0]) for item in source]


# ---- Items


def test_an_item_is_a_tensor_of_its_own(ten):
    first, _ = ten[3]
    first += 100
    again, label = ten[3]
    assert again.tolist() == [[3.0] * 3] * 2
    assert label.item() == 30
    assert again.is_contiguous()
    assert again.data_ptr() != first.data_ptr()


@pytest.mark.parametrize("i", [np.int64(-1), np.uint8(9), torch.tensor(9)], ids=repr)
def test_an_index_may_be_any_whole_number(ten, i):
    assert ten[i][0][0, 0].item() == 9


@pytest.mark.parametrize("i", [1.5, "a", None, slice(2), [1, 2]], ids=repr)
def test_an_index_that_is_no_whole_number_is_a_type_error(ten, i):
    with pytest.raises(TypeError, match=r"expected a whole number, got .*source\.select take"):
        ten[i]


def test_iteration_ends_after_the_last_item(ten):
    assert numbers(ten) == list(range(10))


# ---- Selections

SELECTIONS = {
    "a list": ([3, 1, 1], [3, 1, 1]),
    "from the end": ([-1, -10, 0], [9, 0, 0]),
    "an array": (np.array([9, 8], np.uint8), [9, 8]),
    "a range": (range(0, 10, 4), [0, 4, 8]),
    "a tensor": (torch.tensor([2, 5]), [2, 5]),
    "a mask": (np.arange(10) % 4 == 1, [1, 5, 9]),
    "a mask as a list": ([True] + [False] * 8 + [True], [0, 9]),
    "one number": (4, [4]),
    "none": ([], []),
}


@pytest.mark.parametrize(("indices", "want"), SELECTIONS.values(), ids=SELECTIONS)
def test_a_selection_has_these_items_in_this_order(ten, indices, want):
    part = ten.select(indices)
    assert len(part) == len(want)
    assert numbers(part) == want
    assert part.labels.tolist() == [10 * i for i in want]
    assert [Path(path).stem for path in part.paths] == [str(i) for i in want]
    assert part.shapes.tolist() == [[2, 3]] * len(want)
    assert part.nbytes == 24 * len(want)
    assert len(ten) == 10


def test_a_selection_of_a_selection_counts_its_own_items(ten, rows):
    assert numbers(ten.select([5, 6, 7, 8]).select([-1, 0]).select([1])) == [5]
    part = rows.select([7, 2, 3]).select([2, 0])
    assert [tensor.tolist() for tensor in part] == [[3, 3], [7, 7]]
    assert [Path(path).name for path in part.paths] == ["b.npy", "b.npy"]
    assert Path(rows.select([7, 2, 3]).paths[1]).name == "a.npy"


def test_a_loader_of_a_selection_reads_only_that(ten):
    loader = gl.DataLoader(ten.select([7, 3]), batch_size=2, extras=("index", "path"))
    (batch,) = loader
    assert batch.x[:, 0, 0].tolist() == [7, 3]
    assert batch.y.tolist() == [70, 30]
    assert batch.index.tolist() == [0, 1]
    assert [Path(path).stem for path in batch.path] == ["7", "3"]


BAD_SELECTIONS = {
    "past the end": ([0, 10], IndexError, r"select: expected indices of \[-10, 10\), got 10"),
    "before the start": ([-11], IndexError, r"select: expected indices of \[-10, 10\), got -11"),
    "a short mask": ([True] * 9, IndexError, r"select: expected a mask of 10 items, got \(9,\)"),
    "fractions": ([0.5], TypeError, "select: expected whole numbers, got float64"),
    "text": (["a"], TypeError, "select: expected whole numbers, got <U1"),
    "a slice": (slice(3), TypeError, "select: expected whole numbers, got object"),
}


@pytest.mark.parametrize(
    ("indices", "error", "wanted"), BAD_SELECTIONS.values(), ids=BAD_SELECTIONS
)
def test_a_bad_selection_is_refused(ten, indices, error, wanted):
    with pytest.raises(error, match=wanted):
        ten.select(indices)


# ---- Splits

SPLITS = {
    "lengths": ([7, 3], [7, 3]),
    "NumPy lengths": (np.array([7, 3]), [7, 3]),
    "lengths that leave some out": ([2, 3], [2, 3]),
    "an empty part": ([0, 10, 0], [0, 10, 0]),
    "fractions": ([0.8, 0.2], [8, 2]),
    "fractions that leave some out": ([0.5, 0.2], [5, 2]),
    "thirds": ([1 / 3] * 3, [3, 4, 3]),
    "tenths that sum to less than one in binary": ([0.1] * 10, [1] * 10),
    "the whole as a fraction": ([1.0], [10]),
    "the whole number one": ([1], [1]),
}


@pytest.mark.parametrize(("parts", "lengths"), SPLITS.values(), ids=SPLITS)
def test_parts_follow_one_another(ten, parts, lengths):
    sources = ten.split(parts)
    assert [len(source) for source in sources] == lengths
    items = [number for source in sources for number in numbers(source)]
    assert items == list(range(sum(lengths)))


def test_a_seed_shuffles_before_the_cut(ten):
    first, second = ten.split([6, 4], seed=1)
    assert sorted(numbers(first) + numbers(second)) == list(range(10))
    assert numbers(first) != list(range(6))
    assert numbers(first) == numbers(ten.split([0.6, 0.4], seed=1)[0])
    assert numbers(first) != numbers(ten.split([6, 4], seed=2)[0])
    assert first.labels.tolist() == [10 * i for i in numbers(first)]


BAD_SPLITS = {
    "more items than there are": [7, 4],
    "more than the whole": [0.7, 0.5],
    "a negative length": [-1, 5],
    "a negative fraction": [-0.1, 0.5],
    "no number": [float("nan"), 0.5],
    "no end": [float("inf")],
    "no parts": [],
    "a fraction beside a length": [0.5, 5],
}


@pytest.mark.parametrize("parts", BAD_SPLITS.values(), ids=BAD_SPLITS)
def test_a_bad_split_is_refused(ten, parts):
    with pytest.raises(ValueError, match=r"split: expected parts of 10 items, got \["):
        ten.split(parts)


# ---- What it says of itself


def test_a_summary_counts_items_shapes_and_classes(tmp_path):
    for i, shape in enumerate([(2, 3), (2, 3), (4, 5), (6, 1), (1, 1)]):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        np.save(tmp_path / "ab"[i % 2] / f"{i}.npy", np.zeros(shape, np.int16))
    source = gl.open(tmp_path)
    assert source.summary().splitlines() == [
        "5 items in 5 files, int16, 0.0 MB",
        "shapes: (2, 3) x 2, (1, 1) x 1, (4, 5) x 1 and 1 more",
        "classes: a (3), b (2)",
    ]
    assert repr(source) == "<gpuload.Source: 5 items in 5 files, int16, 0.0 MB>"


def test_a_source_without_items_can_be_described(ten):
    empty = ten.select([])
    assert repr(empty) == "<gpuload.Source: no items>"
    assert empty.summary().startswith("0 items in 10 files, float32, 0.0 MB")
    assert empty.shapes.shape == (0, 2)


def test_paths_answer_like_a_sequence(rows, ten):
    assert [Path(path).name for path in rows.paths[2:4]] == ["a.npy", "b.npy"]
    assert Path(rows.paths[-1]).name == "b.npy"
    assert len(list(rows.paths)) == len(rows.paths) == 8
    assert [Path(path).stem for path in ten.paths[8:]] == ["8", "9"]
    assert Path(ten.paths[-1]).stem == "9"
    for paths in (rows.paths, ten.paths, ten.select([1]).paths):
        with pytest.raises(IndexError, match="paths: expected an index below"):
            paths[len(paths)]


def test_dtype_and_nbytes_are_of_the_items_alone(tmp_path):
    table = np.zeros((3, 5), [("pad", "u1"), ("x", ">f2", (2,)), ("y", "f8")])
    np.save(tmp_path / "a.npy", table)
    source = gl.open(tmp_path / "a.npy", member="x")
    assert source.dtype == torch.float16
    assert source.nbytes == 3 * 5 * 2 * 2


def test_a_fingerprint_is_the_same_after_the_data_have_moved(tmp_path, ten):
    shutil.copytree(tmp_path / "ten", tmp_path / "elsewhere" / "deep")
    moved = gl.open(tmp_path / "elsewhere" / "deep")
    assert moved.fingerprint() == ten.fingerprint()
    assert len(bytes.fromhex(ten.fingerprint())) == 8


def test_a_fingerprint_changes_with_the_data(tmp_path, ten):
    folder = tmp_path / "ten"
    seen = {ten.fingerprint(), gl.open(folder, sample_axis=0).fingerprint()}
    seen |= {ten.select([0, 1]).fingerprint(), ten.select([1, 0]).fingerprint()}
    np.save(folder / "3.npy", np.zeros((3, 2), np.float32))
    seen.add(gl.open(folder).fingerprint())
    np.save(folder / "3.npy", np.zeros((3, 2), ">f4"))
    seen.add(gl.open(folder).fingerprint())
    (folder / "3.npy").rename(folder / "31.npy")
    seen.add(gl.open(folder).fingerprint())
    (folder / "0.npy").unlink()
    seen.add(gl.open(folder).fingerprint())
    assert len(seen) == 8


# ---- Other processes


@pytest.fixture
def large(tmp_path):
    """An 8 MB file of a million rows, read from and asked for everything it knows."""
    np.save(tmp_path / "large.npy", np.arange(2_000_000, dtype=np.float32).reshape(-1, 2))

    def open_and_use(**arguments):
        source = gl.open(tmp_path / "large.npy", **arguments)
        assert source[len(source) - 1].reshape(-1)[-1].item() == 1_999_999
        assert (len(source.shapes), source.nbytes, len(source.paths)) == (
            len(source),
            8_000_000,
            len(source),
        )
        return source

    return open_and_use


@pytest.mark.parametrize("sample_axis", [None, 0])
def test_a_used_source_pickles_small_whatever_the_size_of_the_file(large, sample_axis):
    source = large(sample_axis=sample_axis)
    pickled = pickle.dumps(source)
    assert len(pickled) < 100_000
    copy = pickle.loads(pickled)
    for i in (0, len(source) // 2, -1):
        assert torch.equal(copy[i], source[i])
    assert copy.fingerprint() == source.fingerprint()


def test_a_selection_with_labels_survives_pickling(ten):
    part = ten.select([4, 2])
    copy = pickle.loads(pickle.dumps(part))
    assert numbers(copy) == [4, 2]
    assert copy.labels.tolist() == [40, 20]
    assert list(copy.paths) == list(part.paths)


def test_it_is_a_map_style_dataset_for_workers_of_torch(ten):
    ten[0]  # so that there is something that must not travel
    loader = torch.utils.data.DataLoader(
        ten, batch_size=4, num_workers=2, multiprocessing_context="spawn", timeout=50
    )
    batches = list(loader)
    assert [len(x) for x, _ in batches] == [4, 4, 2]
    assert torch.cat([x for x, _ in batches])[:, 0, 0].tolist() == list(range(10))
    assert torch.cat([y for _, y in batches]).tolist() == list(range(0, 100, 10))


def test_a_forked_child_opens_files_of_its_own(run_python, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(2000.0).repeat(100).reshape(2000, 100))
    code = """
        import os, sys, warnings
        import gpuload as gl
        source = gl.open(sys.argv[1], sample_axis=0)
        source[0]  # the parent's descriptor is open
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                wrong = sum((source[i] != i).any().item() for i in range(0, 2000, 3))
                os._exit(1 if wrong else 0)
            children.append(child)
        wrong = sum((source[i] != i).any().item() for i in range(0, 2000, 3))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        sys.exit(f"wrong: {wrong}, {codes}" if wrong or any(codes) else 0)
    """
    done = run_python(code, tmp_path / "a.npy")
    assert done.returncode == 0, done.stderr
