"""Windows reversed and turned at random: drawn like crops, as NumPy does it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
import torch
from arranged import numbered, save, some

import gpuload as gl


@pytest.fixture
def squares(tmp_path):
    """A source of 12 arrays (4, 4), and they."""
    arrays = [numbered((4, 4), start=100 * i) for i in range(12)]
    return save(tmp_path / "squares", arrays), arrays


def drawn(loader):
    """Flips and turns by (item, crop)."""
    return {
        (item, crop): (tuple(flip), turns)
        for batch in loader
        for item, crop, flip, turns in zip(
            *(getattr(batch, name).tolist() for name in ("index", "crop", "flip", "rot90")),
            strict=True,
        )
    }


TOLD = ("index", "crop", "flip", "rot90")

# ---- As NumPy

FLIPS = {
    "nothing": ((), None),
    "rows": (0, None),
    "columns": ((1,), None),
    "counted from the end": (-1, None),
    "both": ((0, 1), None),
    "a list": ([1, 0], None),
    "turned": ((), (0, 1)),
    "turned the other way": ((), (1, 0)),
    "turned, axes from the end": ((), (-2, -1)),
    "reversed and turned": ((0, 1), (0, 1)),
    "one reversed, turned the other way": (1, (1, 0)),
}


@pytest.mark.parametrize(("flip", "rot90"), FLIPS.values(), ids=FLIPS)
def test_windows_are_those_of_numpy(squares, check_every_way, flip, rot90):
    source, arrays = squares
    options = {"flip": flip, "rot90": rot90, "shuffle": True, "epochs": 2}
    axes = tuple(axis % 2 for axis in np.atleast_1d(flip).astype(int))
    plane = None if rot90 is None else tuple(axis % 2 for axis in rot90)
    for crop in (None, gl.RandomCrop(3, 2)):
        epochs = check_every_way(source, arrays, 5, crop=crop, **options)
        for batch in itertools.chain(*epochs):
            assert not batch.flip[:, [axis for axis in (0, 1) if axis not in axes]].any()
            assert plane is not None or not batch.rot90.any()


def test_a_quarter_turns_as_numpy_does(tmp_path, on_every_way):
    array = np.array([[1, 2], [3, 4]])
    source = save(tmp_path / "a", [array] * 16)
    (batch,) = on_every_way(source, 16, rot90=(0, 1), extras="rot90")
    assert set(batch.rot90.tolist()) == {0, 1, 2, 3}
    want = {0: [[1, 2], [3, 4]], 1: [[2, 4], [1, 3]], 2: [[4, 3], [2, 1]], 3: [[3, 1], [4, 2]]}
    assert batch.x.tolist() == [want[turns] for turns in batch.rot90.tolist()]


PLANES = [(0, 1), (1, 0), (0, 2), (2, 1), (1, 2)]


@pytest.mark.parametrize("layout", [None, "channels_first", "channels_last"])
@pytest.mark.parametrize("plane", PLANES, ids=str)
def test_any_plane_of_volumes_of_any_layout(tmp_path, check_every_way, plane, layout):
    arrays = [some((5, 5, 5), "i2", i) for i in range(9)]
    source = save(tmp_path / "a", arrays)
    options = {"flip": (0, 2), "rot90": plane, "layout": layout}
    check_every_way(source, arrays, 4, crop=gl.RandomCrop(3), **options)
    pad = gl.Pad(6, align="end", value=-1)
    check_every_way(source, arrays, 4, pad=pad, scale=0.5, **options)


@pytest.mark.parametrize("align", ["center", "begin", "end"])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_what_is_turned_is_aligned_as_it_then_lies(tmp_path, check_every_way, align, mode):
    shapes = [(3, 5), (6, 2), (4, 4), (1, 7), (7, 3), (2, 5)]
    arrays = [some(shape, seed=i) for i, shape in enumerate(shapes)]
    source = save(tmp_path / "a", arrays)
    options = {"flip": (0, 1), "rot90": (0, 1), "epochs": 3}
    for to in (8, "max", "batch", "multiple:4"):
        check_every_way(source, arrays, 3, pad=gl.Pad(to, align, mode), **options)


def test_largest_is_meant_for_the_plane_as_a_whole(tmp_path, check_every_way):
    arrays = [some(shape, seed=1) for shape in ((3, 9, 2), (4, 5, 2))]
    source = save(tmp_path / "a", arrays)
    (batch,) = check_every_way(source, arrays, pad=gl.Pad("max"), rot90=(0, 1))
    assert batch.x.shape == (2, 9, 9, 2)
    (batch,) = check_every_way(source, arrays, pad=gl.Pad("p95"), rot90=(0, 1))
    assert batch.x.shape == (2, 9, 9, 2)


def test_crops_that_are_no_squares_are_padded_to_them(tmp_path, check_every_way):
    arrays = [some((10, 10), seed=i) for i in range(8)]
    source = save(tmp_path / "a", arrays)
    crop = gl.RandomCrop((4, 8))
    batches = check_every_way(source, arrays, crop=crop, pad=gl.Pad(), rot90=(0, 1), flip=0)
    assert batches[0].x.shape == (3, 8, 8)


def test_what_is_too_large_is_cut_or_made_smaller_before_it_is_turned(tmp_path, check_every_way):
    arrays = [some(shape, seed=1) for shape in ((3, 9), (8, 5), (4, 4), (9, 9))]
    source = save(tmp_path / "a", arrays)
    for oversize in ("crop", "resize"):
        pad = gl.Pad(5, oversize=oversize)
        check_every_way(source, arrays, 4, pad=pad, rot90=(0, 1), flip=(0, 1), epochs=3)


@pytest.mark.parametrize("stored", [">f4", "u1", ">c8", "f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_values_of_any_type_are_turned(tmp_path, check_every_way, stored, order):
    arrays = [
        np.asarray(some((5, 5), "f4", i) if stored != ">c8" else some((5, 5), "c8", i))
        for i in range(6)
    ]
    arrays = [np.asarray(array, stored, order=order) for array in arrays]
    source = save(tmp_path / "a", arrays)
    check_every_way(source, arrays, flip=(0, 1), rot90=(0, 1))


def test_labels_and_rows_of_files(tmp_path, check_every_way):
    files = [some((n, 3, 3), seed=n) for n in (4, 2, 5)]
    source = save(tmp_path / "a", files, sample_axis=0)
    rows = [row for file in files for row in file]
    check_every_way(source, rows, 4, flip=0, rot90=(0, 1), shuffle="block")


# ---- What is drawn


def test_draws_are_those_of_the_reference(squares):
    source, _ = squares
    for seed, epoch in ((0, 0), (7, 3), (2**64 - 1, 1)):
        with gl.DataLoader(
            source, 5, crop=gl.RandomCrop(2, 3), flip=(0, 1), rot90=(0, 1), seed=seed, extras=TOLD
        ) as loader:
            loader.set_epoch(epoch)
            found = drawn(loader)
        items, crops = np.array(sorted(found)).T
        flips, turns = reference.flips_and_turns(
            2, seed=seed, epoch=epoch, items=items, crops=crops
        )
        for k, key in enumerate(sorted(found)):
            assert found[key] == (tuple(flips[k]), turns[k])


def test_axes_that_are_not_to_be_reversed_are_not(squares):
    source, _ = squares
    with gl.DataLoader(source, 5, crop=gl.RandomCrop(2, 50), flip=1, extras=TOLD) as loader:
        found = drawn(loader)
    items, crops = np.array(sorted(found)).T
    flips, _ = reference.flips_and_turns(2, seed=0, epoch=0, items=items, crops=crops)
    assert [found[key][0] for key in sorted(found)] == [(False, flip) for flip in flips[:, 1]]
    assert {turns for _, turns in found.values()} == {0}


def test_every_flip_and_turn_is_equally_likely(tmp_path):
    source = save(tmp_path / "a", [numbered((2, 2, 2))])
    with gl.DataLoader(
        source,
        1000,
        crop=gl.RandomCrop(2, 16000),
        flip=(0, 1, 2),
        rot90=(0, 2),
        device="cpu",
        extras=("flip", "rot90"),
    ) as loader:
        counts = np.zeros((2, 2, 2, 4), int)
        for batch in loader:
            np.add.at(counts, (*batch.flip.numpy().T.astype(int), batch.rot90.numpy()), 1)
    assert counts.sum() == 16000
    assert reference.looks_even(counts.reshape(-1))


def test_crops_of_one_item_are_flipped_independently_of_their_place(tmp_path):
    source = save(tmp_path / "a", [numbered((2, 9))])
    with gl.DataLoader(
        source, 100, crop=gl.RandomCrop((2, 8), 4000), flip=(1,), extras=("flip", "start")
    ) as loader:
        counts = np.zeros((2, 2), int)
        for batch in loader:
            np.add.at(counts, (batch.start[:, 1].numpy(), batch.flip[:, 1].numpy().astype(int)), 1)
    assert reference.looks_even(counts.reshape(-1))


def table(source, *, epoch=0, **options):
    with gl.DataLoader(
        source,
        crop=gl.RandomCrop(3, 2),
        flip=(0, 1),
        rot90=(0, 1),
        shuffle=True,
        extras=TOLD,
        device="cpu",
        **({"batch_size": 4} | options),
    ) as loader:
        loader.set_epoch(epoch)
        return drawn(loader)


OTHER = {
    "one by one": {"batch_size": 1},
    "all at once": {"batch_size": 100},
    "one thread": {"threads": 1},
    "five threads": {"threads": 5},
    "no shuffle": {"shuffle": False},
    "reads": {"io": "pread"},
}


@pytest.mark.parametrize("options", OTHER.values(), ids=OTHER)
def test_draws_depend_on_nothing_else(squares, options):
    source, _ = squares
    want = table(source)
    options = dict(options)
    if options.pop("shuffle", True):
        assert table(source, **options) == want
        return
    with gl.DataLoader(
        source, 4, crop=gl.RandomCrop(3, 2), flip=(0, 1), rot90=(0, 1), extras=TOLD
    ) as loader:
        assert drawn(loader) == want


@pytest.mark.parametrize("world_size", [2, 3])
def test_draws_are_the_same_for_any_number_of_ranks(squares, world_size):
    source, _ = squares
    parts = [table(source, rank=rank, world_size=world_size) for rank in range(world_size)]
    union = {key: value for part in parts for key, value in part.items()}
    assert union == table(source)


def test_epochs_and_seeds_differ_and_come_again(squares):
    source, _ = squares
    first, second = table(source), table(source, epoch=1)
    assert first != second
    assert table(source, epoch=1) == second
    assert table(source, seed=1) != first


# ---- Errors

BAD = {
    "true": ({"flip": True}, TypeError, "flip: expected axes of an item, such as (0, 1), got True"),
    "text": ({"flip": "hv"}, TypeError, "flip: expected axes of an item, such as (0, 1), got 'hv'"),
    "a fraction": ({"flip": (0.5,)}, TypeError, "flip: expected axes of an item, such as (0, 1)"),
    "too many axes": ({"flip": 2}, ValueError, "flip: expected axes of [-2, 2), got 2"),
    "below them": ({"flip": (0, -3)}, ValueError, "flip: expected axes of [-2, 2), got -3"),
    "twice": ({"flip": (0, -2)}, ValueError, "flip: expected each axis once, got (0, -2)"),
    "one axis": ({"rot90": 1}, ValueError, "rot90: expected two axes, such as (0, 1), got 1"),
    "three": ({"rot90": (0, 1, 0)}, ValueError, "rot90: expected each axis once, got (0, 1, 0)"),
    "one axis twice": ({"rot90": (1, 1)}, ValueError, "rot90: expected each axis once"),
    "no such plane": ({"rot90": (1, 2)}, ValueError, "rot90: expected axes of [-2, 2), got 2"),
    "true for a plane": ({"rot90": True}, TypeError, "rot90: expected axes of an item"),
    "another shape": (
        {"pad": gl.Pad((4, 5)), "rot90": (0, 1)},
        ValueError,
        "rot90: expected samples as long along axis 0 as along axis 1, got 4 and 5; pad both to "
        "the same length",
    ),
}


@pytest.mark.parametrize(("options", "error", "rule"), BAD.values(), ids=BAD)
def test_what_cannot_be_turned_is_an_error_of_one_line(squares, options, error, rule):
    source, _ = squares
    with pytest.raises(error) as caught:
        gl.DataLoader(source, 2, **options)
    assert str(caught.value).startswith(rule)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).endswith(".")


NO_SQUARES = {
    "whole": ((3, 4), {}),
    "cropped": ((6, 6), {"crop": gl.RandomCrop((3, 4))}),
    "resized": ((6, 6), {"resize": gl.Resize((3, 4))}),
    "padding of nothing": ((3, 4), {"pad": gl.Pad(None)}),
    "left alone": ((3, 4), {"pad": gl.Pad((None, None))}),
    "one of them left alone": ((3, 4), {"pad": gl.Pad((None, "batch"))}),
    "the other left alone": ((3, 4), {"pad": gl.Pad(("batch", None))}),
    "left alone by a number": ((3, 4), {"pad": gl.Pad(-1)}),
}


@pytest.mark.parametrize(("shape", "options"), NO_SQUARES.values(), ids=NO_SQUARES)
def test_only_squares_are_turned_without_padding(tmp_path, shape, options):
    source = save(tmp_path / "a", [numbered(shape)] * 2)
    rule = (
        r"000\.npy: expected windows as long along axis 0 as along axis 1 for rot90=, got "
        r"\(3, 4\); crop or pad them to squares$"
    )
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, rot90=(0, 1), **options)


def test_axes_that_look_like_channels_are_left_alone_in_a_plane_too(tmp_path):
    source = save(tmp_path / "a", [numbered((3, 5, 4))] * 2)
    with pytest.raises(ValueError, match="expected windows as long along axis 0 as along axis 2"):
        gl.DataLoader(source, 2, rot90=(0, 2), pad=gl.Pad())


@pytest.mark.parametrize("options", [{"flip": 2}, {"rot90": (1, 2)}], ids=str)
def test_channels_that_have_their_own_mean_keep_their_order(tmp_path, options):
    source = save(tmp_path / "a", [numbered((4, 4, 4))])
    name = next(iter(options))
    rule = f"^{name}: expected other axes than that of channels with mean= or std= for each, got"
    with pytest.raises(ValueError, match=rule):
        gl.DataLoader(source, mean=(1, 2, 3, 4), layout="channels_first", **options)


def test_channels_of_one_mean_may_be_reversed(tmp_path, check_every_way):
    arrays = [some((4, 4, 4), seed=i) for i in range(5)]
    source = save(tmp_path / "a", arrays)
    check_every_way(source, arrays, mean=3, flip=2, rot90=(1, 2), layout="channels_first")


def test_a_plane_is_in_all_fields_or_in_none(tmp_path):
    save(tmp_path / "image", [some((4, 4), seed=i) for i in range(2)])
    save(tmp_path / "row", [some((4,), seed=i) for i in range(2)])
    fields = {"image": tmp_path / "image", "row": tmp_path / "row"}
    source = gl.open(fields=fields)
    with pytest.raises(ValueError, match=r"^rot90: expected both axes \(0, 1\) in every field"):
        gl.DataLoader(source, rot90=(0, 1))


def test_without_flips_there_is_nothing_to_tell(squares, on_every_way):
    source, _ = squares
    (batch, *_) = on_every_way(source, extras=("flip", "rot90", "mask", "lengths"))
    assert not batch.flip.any()
    assert batch.flip.shape == (3, 2)
    assert torch.equal(batch.rot90, torch.zeros(3, dtype=torch.int64))
    assert batch.mask.tolist() == [[[True]]] * 3
    assert batch.lengths.tolist() == [[4, 4]] * 3
