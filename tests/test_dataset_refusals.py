"""What gpuload.dataset takes and refuses, and which arguments mean something for it."""

from __future__ import annotations

import pytest
import torch
from some_datasets import Numbers, labels

import gpuload as gl


def test_a_source_gives_items_and_parts():
    source = gl.dataset(Numbers())
    assert len(source) == 20
    assert source[-1][1] == 19
    assert repr(source) == "<gpuload.DatasetSource: 20 items of Numbers>"
    picked = source.select([4, -1, 2]).select([True, False, True])
    assert [label for _, label in (picked[0], picked[1])] == [4, 2]
    assert picked.summary() == "2 of 20 items of Numbers"
    assert labels(gl.DataLoader(picked, batch_size=2)) == [[4, 2]]
    assert [len(part) for part in source.split([0.5, 0.25])] == [10, 5]
    a, b = source.split([15, 5], seed=0)
    assert sorted([a[i][1] for i in range(15)] + [b[i][1] for i in range(5)]) == list(range(20))
    assert len({s.fingerprint() for s in (source, picked, a, b)}) == 4
    with pytest.raises(IndexError, match=r"source: expected an index of \[-20, 20\), got 20"):
        source[20]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Lengthless:
    def __getitem__(self, i):
        return i


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((Stream(),), {}, TypeError, "dataset: expected items by number, Stream can only be"),
        ((Lengthless(),), {}, TypeError, "map-style Dataset .*, Lengthless has no __len__"),
        ((3,), {}, TypeError, "dataset: expected a map-style Dataset .* int has no __len__"),
        ((gl.dataset([1]),), {}, TypeError, "expected a torch Dataset, got a DatasetSource"),
        (([1],), {"workers": -1}, ValueError, r"workers: expected a number of \[0, 1024\], got -1"),
        (([1],), {"workers": "2"}, TypeError, "workers: expected a whole number, got '2'"),
        (([1],), {"workers": True}, TypeError, "workers: expected a whole number, got True"),
        (([1],), {"collate_fn": 3}, TypeError, "collate_fn: expected a function of a list"),
    ],
)  # fmt: skip
def test_what_is_no_dataset_is_refused(arguments, options, error, match):
    with pytest.raises(error, match=match):
        gl.dataset(*arguments, **options)


REFUSED = {
    "crop": (gl.RandomCrop(2), TypeError, "crop: expected not to be passed with a gpuload.dataset"),
    "dtype": ("float16", TypeError, "got 'float16'; change items in the dataset"),
    "pad": (1, TypeError, "pad: expected not to be passed"),
    "scale": (1 / 255, TypeError, "scale: expected not to be passed"),
    "io": ("mmap", TypeError, "io: expected not to be passed .*, got 'mmap'; the dataset's own"),
    "cache": ("device", TypeError, "cache: expected not to be passed"),
    "on_error": ("replace", TypeError, "on_error: expected not to be passed"),
    "max_errors": (3, TypeError, "max_errors: expected not to be passed"),
    "collate_fn": (list, TypeError, "collate_fn: .*; pass it to gpuload.dataset"),
    "worker_init_fn": (print, TypeError, "worker_init_fn: expected not to be passed"),
    "shuffle": ("block", ValueError, 'shuffle: expected True or False .*, got "block"'),
    "extras": (("index", "start"), ValueError, 'expected "index" or "valid" .*, got "start"'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_without_a_meaning_for_a_dataset_are_refused(name):
    value, error, match = REFUSED[name]
    with pytest.raises(error, match=match):
        gl.DataLoader(gl.dataset(Numbers()), **{name: value})


def test_torchs_names_with_a_meaning_are_taken():
    loader = gl.DataLoader(
        gl.dataset(Numbers()),
        batch_size=4,
        num_workers=2,
        prefetch_factor=3,
        pin_memory=True,
        persistent_workers=True,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
    )
    assert "read by 2 threads, 3 batches ahead" in loader.describe()
    assert labels(loader) == labels(
        gl.DataLoader(gl.dataset(Numbers()), batch_size=4, shuffle=True, seed=3)
    )
    for extra in ({"threads": 2}, {"num_workers": 2}):
        with pytest.raises(
            ValueError, match=r"expected not to be passed with gpuload.dataset\(workers=2\)"
        ):
            gl.DataLoader(gl.dataset(Numbers(), workers=2), **extra)


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="source: expected at least one item, got none"):
        gl.DataLoader(gl.dataset([]))
