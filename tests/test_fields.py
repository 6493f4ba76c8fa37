"""gpuload.open(fields=...): which files are paired, which axes they share, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import gpuload as gl
from gpuload.sources.pairing import Side, by_stem


def save(path: Path, array: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


def image(i: int, shape: tuple[int, ...] = (6, 5, 3)) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1000 * i


def mask(i: int, shape: tuple[int, ...] = (6, 5)) -> np.ndarray:
    return np.full(shape, i, np.uint8)


@pytest.fixture
def pairs(tmp_path):
    """Folders images/ and masks/ with 0.npy, 1.npy, 2.npy each."""
    for i in range(3):
        save(tmp_path / "images" / f"{i}.npy", image(i))
        save(tmp_path / "masks" / f"{i}.npy", mask(i))
    return tmp_path


def numbers(source: gl.Source) -> list[tuple[int, int]]:
    """(image number, mask number) of each item."""
    return [(int(item[0].reshape(-1)[0]) // 1000, int(item[1].max())) for item in source]


def test_each_item_has_an_array_of_each_field(pairs):
    source = gl.open(fields={"image": pairs / "images", "mask": pairs / "masks"})
    assert len(source) == 3
    assert [field.name for field in source.fields] == ["image", "mask"]
    assert source.dtypes == {"image": torch.float32, "mask": torch.uint8}
    assert [field.axes for field in source.fields] == [(0, 1, 2), (0, 1)]
    assert source.nbytes == 3 * (6 * 5 * 3 * 4 + 6 * 5)
    assert [Path(path).parent.name for path in source.paths] == ["images"] * 3
    for i in range(3):
        x, m = source[i]
        np.testing.assert_array_equal(x, image(i))
        np.testing.assert_array_equal(m, mask(i))


def test_selections_pickles_and_fingerprints_take_all_fields(pairs):
    fields = {"image": pairs / "images", "mask": pairs / "masks"}
    source = gl.open(fields=fields)
    assert numbers(source.select([2, 0])) == [(2, 2), (0, 0)]
    source[0]
    copy = pickle.loads(pickle.dumps(source))
    assert numbers(copy) == numbers(source) == [(0, 0), (1, 1), (2, 2)]
    assert copy.fingerprint() == gl.open(fields=fields).fingerprint() == source.fingerprint()
    alone = gl.open(fields={"image": pairs / "images"})
    other = gl.open(fields={"image": pairs / "images", "other": pairs / "masks"})
    prints = {s.fingerprint() for s in (source, alone, other, source.select([0, 1]))}
    assert len(prints) == 4


def test_one_field_is_a_source_with_a_name(pairs):
    source = gl.open(fields={"image": pairs / "images"})
    assert source.fields[0].name == "image"
    np.testing.assert_array_equal(source[1], image(1))
    assert len(list(gl.DataLoader(source, batch_size=2))) == 2


# ---- Pairs

# Files of two fields, by number -> what is named for each of them.
LAYOUTS = {
    "folders": ("images/{}.npy", "masks/{}.npy", "images", "masks"),
    "folders with a slash": ("images/{}.npy", "masks/{}.npy", "images/", "masks/"),
    "globs": ("images/{}.npy", "masks/{}.npy", "images/*.npy", "masks/?.npy"),
    "a folder and a glob": ("images/{}.npy", "masks/{}.npy", "images", "masks/*.npy"),
    "a folder and a glob of some names": ("i/a{}.npy", "m/a{}.npy", "i", "m/a*.npy"),
    "globs of names that differ": ("all/i_{}.npy", "all/m_{}.npy", "all/i_*.npy", "all/m_*.npy"),
    "globs of endings that differ": ("d/{}_i.npy", "d/{}_m.npy", "d/[0-2]_i.npy", "d/*_m.npy"),
    "a folder for each item": ("{}/i.npy", "{}/m.npy", "*/i.npy", "*/m.npy"),
    "folders at any depth": ("i/a/{}/x.npy", "m/a/{}/x.npy", "i", "m/**/x.npy"),
    "lists": (
        "images/{}.npy",
        "masks/{}.npy",
        ["images/0.npy", "images/1.npy", "images/2.npy"],
        ["masks/2.npy", "masks/0.npy", "masks/1.npy"],
    ),
    "lists of files of the same name": (
        "images/{}/x.npy",
        "masks/{}/x.npy",
        ["images/0/x.npy", "images/1/x.npy", "images/2/x.npy"],
        ["masks/1/x.npy", "masks/0/x.npy", "masks/2/x.npy"],
    ),
    "a list of folders": (
        "images/{}/a{}.npy",
        "masks/{}/a{}.npy",
        ["images/0", "images/1", "images/2"],
        ["masks/2", "masks/1", "masks/0"],
    ),
}


@pytest.mark.parametrize(("of_image", "of_mask", "images", "masks"), LAYOUTS.values(), ids=LAYOUTS)
def test_files_of_one_stem_are_paired(tmp_path, monkeypatch, of_image, of_mask, images, masks):
    for i in range(3):
        save(tmp_path / of_image.format(i, i), image(i))
        save(tmp_path / of_mask.format(i, i), mask(i))
    monkeypatch.chdir(tmp_path)
    want = [(0, 0), (1, 1), (2, 2)]
    assert numbers(gl.open(fields={"image": images, "mask": masks})) == want

    def absolute(where):
        return (
            [absolute(part) for part in where] if isinstance(where, list) else f"{tmp_path}/{where}"
        )

    where = {"image": absolute(images), "mask": absolute(masks)}
    assert numbers(gl.open(fields=where)) == want


def test_class_folders_count_to_the_stem_and_give_labels(tmp_path):
    for k, name in enumerate(("cat", "dog", "eel")):
        for i in range(2):
            save(tmp_path / "images" / name / f"{i}.npy", image(2 * k + i))
            save(tmp_path / "masks" / name / f"{i}.npy", mask(2 * k + i))
    fields = {"image": tmp_path / "images", "mask": tmp_path / "masks"}
    source = gl.open(fields=fields)
    assert numbers(source) == [(i, i) for i in range(6)]
    assert (source.classes, source.labels.tolist()) == (["cat", "dog", "eel"], [0, 0, 1, 1, 2, 2])
    x, m, y = source[4]
    assert (x.shape, int(m[0, 0]), int(y)) == ((6, 5, 3), 4, 2)
    assert numbers(gl.open(fields=fields, pair="position")) == [(i, i) for i in range(6)]
    assert gl.open(fields=fields, labels=None).labels is None
    given = gl.open(fields=fields, labels=lambda path: int(Path(path).stem))
    assert given.labels.tolist() == [0, 1] * 3


def test_files_are_paired_by_position_where_that_is_said(tmp_path):
    for i in range(3):
        save(tmp_path / "images" / f"{i}.npy", image(i))
        save(tmp_path / "masks" / f"mask of {i}.npy", mask(i))
    fields = {"image": tmp_path / "images", "mask": tmp_path / "masks"}
    assert numbers(gl.open(fields=fields, pair="position")) == [(0, 0), (1, 1), (2, 2)]
    turned = [str(tmp_path / "masks" / f"mask of {i}.npy") for i in (2, 1, 0)]
    source = gl.open(fields=fields | {"mask": turned}, pair="position")
    assert numbers(source) == [(0, 2), (1, 1), (2, 0)]


def test_a_file_may_be_a_partner_twice_by_position(pairs):
    fields = {"image": pairs / "images", "mask": [pairs / "masks" / "1.npy"] * 3}
    assert numbers(gl.open(fields=fields, pair="position")) == [(0, 1), (1, 1), (2, 1)]


def test_three_fields_follow_the_first(pairs):
    for i in range(3):
        save(pairs / "depths" / f"{i}.npy", np.full((6, 5), 10.0 * i))
    names = {"depth": "depths", "image": "images", "mask": "masks"}
    source = gl.open(fields={name: pairs / folder for name, folder in names.items()})
    assert [field.axes for field in source.fields] == [(0, 1), (0, 1, -1), (0, 1)]
    depth, x, m = source[2]
    assert (depth[0, 0].item(), x[0, 0, 0].item(), m[0, 0].item()) == (20, 2000, 2)


# ---- NPZ, members, rows


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_members_of_archives_are_paired(tmp_path, save_npz):
    for i in range(3):
        save_npz(tmp_path / f"{i}.npz", x=image(i), y=mask(i))
    one = tmp_path / "1.npz"
    files = [tmp_path / f"{i}.npz" for i in range(3)]
    want = [(0, 0), (1, 1), (2, 2)]
    assert numbers(gl.open(fields={"image": f"{one}::x", "mask": f"{one}::y"})) == [(1, 1)]
    keys = {"image": "x", "mask": "y"}
    assert numbers(gl.open(fields={"image": tmp_path, "mask": tmp_path}, key=keys)) == want
    assert numbers(gl.open(fields={"image": files, "mask": files[::-1]}, key=keys)) == want
    globs = {"image": f"{tmp_path}/*.npz::x", "mask": f"{tmp_path}/*.npz::y"}
    assert numbers(gl.open(fields=globs)) == want
    same = gl.open(fields={"image": tmp_path, "again": tmp_path}, key="x")
    assert all(torch.equal(a, b) for a, b in same)


def test_archives_and_npy_files_are_paired(tmp_path):
    for i in range(3):
        save(tmp_path / "masks" / f"{i}.npy", mask(i))
        np.savez_compressed(tmp_path / f"{i}.npz", x=image(i), y=0)
    fields = {"image": f"{tmp_path}/*.npz", "mask": tmp_path / "masks"}
    assert numbers(gl.open(fields=fields, key={"image": "x"})) == [(0, 0), (1, 1), (2, 2)]


def test_members_of_records_and_types_are_given_by_field(tmp_path):
    records = np.zeros((4, 3), [("a", "<f4"), ("b", ">i2")])
    records["b"] = np.arange(12).reshape(4, 3)
    save(tmp_path / "r" / "0.npy", records)
    bits = torch.arange(12, dtype=torch.bfloat16).reshape(4, 3).view(torch.int16).numpy()
    save(tmp_path / "h" / "0.npy", bits.view("V2"))
    source = gl.open(
        fields={"r": tmp_path / "r", "h": tmp_path / "h"},
        member={"r": "b"},
        dtype={"h": "bfloat16"},
    )
    assert source[0][0].tolist() == records["b"].tolist()
    assert torch.equal(source[0][1], torch.arange(12, dtype=torch.bfloat16).reshape(4, 3))


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_paired_files_are_items(tmp_path, turned):
    for i, n in enumerate((3, 1, 2)):
        save(tmp_path / "a" / f"{i}.npy", np.arange(n * 4).reshape(n, 4) + 100 * i)
        save(tmp_path / "b" / f"{i}.npy", np.arange(n) + 100 * i)
    files = [tmp_path / "b" / f"{i}.npy" for i in ((2, 0, 1) if turned else (0, 1, 2))]
    source = gl.open(fields={"a": tmp_path / "a", "b": files}, sample_axis=0, labels=range(6))
    assert [(int(a[0]), int(b), int(y)) for a, b, y in source] == [
        (0, 0, 0),
        (4, 1, 1),
        (8, 2, 2),
        (100, 100, 3),
        (200, 200, 4),
        (204, 201, 5),
    ]
    assert source.fields[1].axes == ()


def test_headers_are_saved_for_each_field(pairs, monkeypatch, scanned):
    monkeypatch.setenv("GPULOAD_CACHE_DIR", str(pairs / "cache"))
    fields = {"image": pairs / "images", "mask": pairs / "masks"}
    gl.open(fields=fields, index="auto")
    assert len(scanned()) == 6
    assert numbers(gl.open(fields=fields, index="auto")) == [(0, 0), (1, 1), (2, 2)]
    assert scanned() == []


# ---- Shapes


def test_shapes_may_differ_from_item_to_item(tmp_path):
    for i in range(3):
        save(tmp_path / "images" / f"{i}.npy", image(i, (3, 4 + i, 5)))
        save(tmp_path / "masks" / f"{i}.npy", mask(i, (1, 4 + i, 5)))
    source = gl.open(fields={"image": tmp_path / "images", "mask": tmp_path / "masks"})
    assert source.fields[1].axes == (-1, 1, 2)
    assert [tuple(m.shape) for _, m in source] == [(1, 4, 5), (1, 5, 5), (1, 6, 5)]


MISMATCHES = {
    "one column less": ((6, 6), (6, 5)),
    "one slice less": ((97, 113, 97), (97, 113, 96)),
    "turned": ((6, 5, 3), (5, 6)),
    "a vector": ((6, 5, 3), (10,)),
}


@pytest.mark.parametrize(("first", "other"), MISMATCHES.values(), ids=MISMATCHES)
def test_shapes_that_do_not_fit_are_named_with_both_files(tmp_path, first, other):
    for i in range(3):
        save(tmp_path / "images" / f"{i}.npy", np.zeros((4, 4) if first[0] == 6 == i else first))
        save(tmp_path / "masks" / f"{i}.npy", np.zeros(other))
    with pytest.raises(gl.FormatError) as caught:
        gl.open(fields={"image": tmp_path / "images", "mask": tmp_path / "masks"})
    assert str(caught.value) == (
        f"{tmp_path}/masks/0.npy: expected items of the shape of {tmp_path}/images/0.npy {first} "
        f"(image), but for channels, got {other} (mask)"
    )


def test_the_first_pair_that_does_not_fit_is_named(pairs):
    save(pairs / "masks" / "2.npy", mask(2, (6, 4)))
    with pytest.raises(gl.FormatError, match=r"masks/2\.npy: .*images/2\.npy \(6, 5, 3\) .*\(6, 4"):
        gl.open(fields={"image": pairs / "images", "mask": pairs / "masks"})


# ---- What is refused


def without(pairs: Path, *names: str) -> dict[str, Path]:
    for name in names:
        (pairs / name).unlink()
    return {"image": pairs / "images", "mask": pairs / "masks"}


def damaged(pairs: Path, name: str) -> dict[str, Path]:
    (pairs / name).write_bytes(b"x" * 9)
    return without(pairs)


PAIRS = {
    "an image without a mask": (
        lambda p: {"fields": without(p, "masks/1.npy")},
        gl.FormatError,
        r"fields: expected image and mask of the same stems, got 1 image without mask \(1\), of 3 "
        r"and 2 files; move them, or pass pair=",
    ),
    "both without": (
        lambda p: {"fields": without(p, "masks/1.npy", "masks/2.npy", "images/0.npy")},
        gl.FormatError,
        r"got 2 image without mask \(1, 2\) and 1 mask without image \(0\), of 2 and 1 files",
    ),
    "many without": (
        lambda p: {
            "fields": {
                "image": [save(p / "more" / f"{i:02}.npy", image(i)) for i in range(20)],
                "mask": p / "masks",
            }
        },
        gl.FormatError,
        r"got 20 image without mask \(00, 01, 02, \.\.\.\) and 3 mask without image \(0, 1, 2\)",
    ),
    "two of one stem": (
        lambda p: {"fields": {"image": [p / "images", p / "masks"], "mask": p / "masks"}},
        gl.FormatError,
        r"fields: expected one file of image for each stem, got .*images/0\.npy and .*masks/0\.npy"
        r" for '0'; pass pair=",
    ),
    "other counts": (
        lambda p: {"fields": without(p, "masks/1.npy"), "pair": "position"},
        gl.FormatError,
        "fields: expected as many files of mask as of image, got 2 and 3",
    ),
    "other rows": (
        lambda p: {
            "fields": without(p) | {"mask": [save(p / "0.npy", mask(0, (4, 5)))] * 3},
            "pair": "position",
            "sample_axis": 0,
        },
        gl.FormatError,
        r"/0\.npy: expected 6 rows as in .*images/0\.npy \(image\), got 4 \(mask\)",
    ),
    "where as well": (
        lambda p: {"where": p, "fields": without(p)},
        TypeError,
        "fields: expected not to be passed with where",
    ),
    "a list": (lambda p: {"fields": [p]}, TypeError, "fields: expected a dictionary of names and"),
    "none": (lambda p: {"fields": {}}, TypeError, r"fields: expected a dictionary .*, got \{\}"),
    "a name of a column": (
        lambda p: {"fields": {"image": p, "y": p}},
        ValueError,
        "fields: expected names other than those of the columns of a batch, got 'y'; labels go",
    ),
    "no name": (lambda p: {"fields": {"a-b": p}}, ValueError, "fields: .* identifiers .* 'a-b'"),
    "a number as name": (lambda p: {"fields": {1: p}}, TypeError, "fields: .* as keys, got 1"),
    "another way to pair": (
        lambda p: {"fields": without(p), "pair": "name"},
        ValueError,
        'pair: expected "stem" or "position", got \'name\'',
    ),
    "a key of another field": (
        lambda p: {"fields": without(p), "key": {"masks": "x"}},
        ValueError,
        r"key: expected names of fields \(image, mask\), got 'masks'",
    ),
    "a member that is no name": (
        lambda p: {"fields": without(p), "member": {"mask": 3}},
        TypeError,
        "member: expected the name of a field, got 3",
    ),
    "one index for both": (
        lambda p: {"fields": without(p), "index": p / "headers.npz"},
        ValueError,
        'index: expected None or "auto" with fields',
    ),
    "a folder that is not there": (
        lambda p: {"fields": without(p) | {"mask": p / "gone"}},
        gl.MissingError,
        "gone: expected a file, a folder or a glob, got nothing there",
    ),
    "a damaged file": (
        lambda p: {"fields": damaged(p, "masks/1.npy")},
        gl.FormatError,
        r"masks/1\.npy: expected an NPY file",
    ),
}


@pytest.mark.parametrize(("make", "error", "match"), PAIRS.values(), ids=PAIRS)
def test_what_is_no_pair_is_refused_in_one_line(pairs, make, error, match):
    with pytest.raises(error, match=match) as caught:
        gl.open(**make(pairs))
    assert "\n" not in str(caught.value)


def test_partners_of_files_that_are_left_out_are_left_out(pairs):
    for name in ("images/0.npy", "masks/2.npy"):
        (pairs / name).write_bytes(b"x" * 9)
    fields = {"image": pairs / "images", "mask": pairs / "masks"}
    source = gl.open(fields=fields, on_error="skip", labels=[7, 8, 9])
    assert numbers(source) == [(1, 1)]
    assert source.labels.tolist() == [8]
    assert ["images/0.npy" in source.errors[0], "masks/2.npy" in source.errors[1]] == [True, True]
    (pairs / "masks/1.npy").write_bytes(b"x" * 9)
    with pytest.raises(gl.FormatError, match="expected at least one pair of readable files of 3"):
        gl.open(fields=fields, on_error="skip")


def test_stems_of_many_files_are_looked_up(tmp_path):
    sides = {
        name: Side(str(tmp_path), [f"{tmp_path}/{i}.npy" for i in order])
        for name, order in {"a": range(100_000), "b": reversed(range(100_000))}.items()
    }
    order = by_stem(sides)["b"]
    np.testing.assert_array_equal(order, np.arange(100_000)[::-1])
