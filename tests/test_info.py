"""`gpuload info`: what it makes of a folder's headers, and which files it finds odd."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpuload.cli import main
from gpuload.info.report import size

MANUAL = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()


@pytest.fixture
def run(monkeypatch):
    """Run the command in this process."""
    monkeypatch.setenv("COLUMNS", "300")  # no line is broken

    def run(*arguments: object):
        return CliRunner().invoke(main, ["info", *map(str, arguments)])

    return run


@pytest.fixture
def found(run):
    """Run the command with --json, and return the object."""

    def found(*arguments: object):
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return json.loads(result.stdout)

    return found


@pytest.fixture
def save(tmp_path):
    """Write zeros of each shape into a folder, and return it."""

    def save(shapes, dtype="float32", folder="data", prefix=""):
        directory = tmp_path / folder
        directory.mkdir(parents=True, exist_ok=True)
        for i, shape in enumerate(shapes):
            np.save(directory / f"{prefix}{i:04}.npy", np.zeros(shape, dtype))
        return directory

    return save


def ragged(n: int, seed: int = 0) -> list[tuple[int, ...]]:
    sides = np.random.default_rng(seed).integers(15, 40, size=(n, 2)).tolist()
    return [(height, width, 6) for height, width in sides]


def rules(info) -> list[tuple[str, str]]:
    return [(suspect["rule"], Path(suspect["path"]).name) for suspect in info["suspects"]]


# ---- counts, shapes, memory


def test_shapes_and_extents_are_those_of_numpy(found, save):
    shapes = ragged(41)
    (kind,) = found(save(shapes))["kinds"]
    each, counts = np.unique(shapes, axis=0, return_counts=True)
    assert (kind["dtype"], kind["ndim"], kind["n_files"], kind["n_items"]) == ("float32", 3, 41, 41)
    assert kind["nbytes"] == sum(4 * int(np.prod(shape)) for shape in shapes)
    assert kind["n_shapes"] == len(each)
    assert [shape["n_items"] for shape in kind["shapes"]] == sorted(counts.tolist())[::-1][:5]
    for axis, extents in zip(kind["axes"], np.transpose(shapes), strict=True):
        assert (axis["min"], axis["max"]) == (extents.min(), extents.max())
        for percent in (5, 25, 50, 75, 95):
            wanted = np.percentile(extents, percent, method="higher")
            assert axis[f"p{percent}"] == wanted
        edges = axis["min"] + axis["bin_width"] * np.arange(len(axis["bins"]) + 1)
        assert axis["bins"] == np.histogram(extents, edges)[0].tolist()
        assert len(axis["bins"]) <= 8


def test_the_most_common_shapes_come_first(found, save):
    folder = save([(3, 4)] * 2 + [(5, 6)] * 7 + [(1, 2)])
    (kind,) = found(folder)["kinds"]
    assert kind["shapes"] == [
        {"shape": [5, 6], "n_items": 7},
        {"shape": [3, 4], "n_items": 2},
        {"shape": [1, 2], "n_items": 1},
    ]


@pytest.mark.parametrize("to", ["max", "p95"])
def test_padding_costs_what_an_array_of_all_items_would_take(found, save, to):
    shapes = np.array(ragged(40))
    (kind,) = found(save(shapes.tolist()))["kinds"]
    (padded,) = (each for each in kind["padded"] if each["to"] == to)
    wanted = shapes.max(axis=0) if to == "max" else np.percentile(shapes, 95, 0, method="higher")
    assert padded["shape"] == wanted.tolist()
    for name, nbytes in padded["nbytes"].items():
        assert nbytes == 40 * int(wanted.prod()) * np.dtype(name).itemsize
    assert set(padded["nbytes"]) == {"float64", "float32", "float16", "uint8"}
    assert padded["n_larger"] == int((shapes > wanted).any(axis=1).sum())
    kept = np.minimum(shapes, wanted).prod(axis=1).sum()
    assert padded["data"] == pytest.approx(kept / (40 * wanted.prod()))


def test_classes_are_counted_in_the_order_of_their_labels(found, tmp_path, save):
    for name, n in (("dog", 3), ("cat", 2), ("a-b", 1), ("a", 4)):
        save(ragged(n), folder=f"tree/{name}")
    assert list(found(tmp_path / "tree")["classes"].items()) == [
        ("a", 4),
        ("a-b", 1),
        ("cat", 2),
        ("dog", 3),
    ]


def test_classes_count_files_of_every_kind(found, tmp_path, save):
    save([(2, 3)] * 3, folder="tree/a")
    save([(2, 3)] * 2, folder="tree/b")
    save([(2, 3)] * 2, "uint8", folder="tree/b", prefix="u")
    assert found(tmp_path / "tree")["classes"] == {"a": 3, "b": 4}


def test_a_sample_axis_makes_rows_items(found, save):
    info = found(save([(7, 4, 5), (11, 4, 5)], "uint8"), "--sample-axis", 0)
    (kind,) = info["kinds"]
    assert (info["n_files"], info["n_items"], info["nbytes"]) == (2, 18, 18 * 20)
    assert (kind["ndim"], kind["shapes"]) == (2, [{"shape": [4, 5], "n_items": 18}])
    assert [axis["bins"] for axis in kind["axes"]] == [[18], [18]]
    assert kind["padded"][0]["nbytes"]["float32"] == 18 * 20 * 4
    assert kind["padded"][0]["data"] == 1.0


def test_a_member_is_described_alone(found, tmp_path):
    record = np.zeros((4, 5), [("a", "u1"), ("b", "<f8", (3,))])
    np.save(tmp_path / "record.npy", record)
    (kind,) = found(tmp_path / "record.npy", "--member", "b")["kinds"]
    assert (kind["dtype"], kind["shapes"][0]["shape"]) == ("float64", [4, 5, 3])


def test_a_key_of_npz_files_is_described(found, save):
    folder = save([(4, 5)])
    np.savez(folder / "stored.npz", a=np.zeros((2, 5), "f4"), b=np.zeros(3))
    np.savez_compressed(folder / "deflated.npz", a=np.zeros((3, 5), "f4"))
    np.savez(folder / "other.npz", b=np.zeros(3))
    info = found(folder, "--key", "a")
    (kind,) = info["kinds"]
    assert [(axis["min"], axis["max"]) for axis in kind["axes"]] == [(2, 3), (5, 5)]
    assert (info["n_files"], info["n_items"], info["nbytes"]) == (4, 2, (2 + 3) * 5 * 4)
    assert rules(info) == [("unreadable", "0000.npy"), ("unreadable", "other.npz")]


def test_scalars_have_no_axes(found, run, save):
    folder = save([()] * 3, "int64")
    (kind,) = found(folder)["kinds"]
    assert (kind["ndim"], kind["axes"]) == (0, [])
    assert kind["padded"][0]["nbytes"]["uint8"] == 3
    assert "Memory of int64, 0 axes" in run(folder).output


# ---- kinds


def test_a_mixed_folder_is_told_by_kind(found, save):
    save([(2, 3)] * 3, "uint8", prefix="a")
    save([(2, 3)] * 6, prefix="b")
    folder = save([(2, 3, 4)] * 2, prefix="c")
    info = found(folder)
    assert [(kind["dtype"], kind["ndim"], kind["n_files"]) for kind in info["kinds"]] == [
        ("float32", 2, 6),
        ("uint8", 2, 3),
        ("float32", 3, 2),
    ]
    assert info["n_items"] == 11
    assert rules(info) == [
        ("another kind", name)
        for name in ("a0000.npy", "a0001.npy", "a0002.npy", "c0000.npy", "c0001.npy")
    ]
    assert info["suspects"][0]["reason"] == (
        "uint8 with 2 axes where 6 of 11 files are float32 with 2 axes"
    )


def test_rows_that_differ_are_another_kind(found, save):
    save([(5, 4)] * 2, prefix="a")
    info = found(save([(5, 3)], prefix="b"), "--sample-axis", 0)
    assert [kind["shapes"] for kind in info["kinds"]] == [
        [{"shape": [4], "n_items": 10}],
        [{"shape": [3], "n_items": 5}],
    ]
    assert [suspect["reason"] for suspect in info["suspects"]] == [
        "of another record layout, or with other rows, where 2 of 3 files are float32 with 1 axis"
    ]


# ---- suspicious files


def test_files_like_each_other_are_not_suspicious(found, run, save):
    folder = save([(20, 30, 6)] * 8)  # of one size and one header
    assert found(folder)["suspects"] == []
    assert re.search(r"^Suspicious files\n  none", run(folder).output, re.M)


def test_ragged_files_are_not_suspicious(found, save):
    assert found(save(ragged(60)))["suspects"] == []


def odd_file(save, name: str, shape: tuple[int, ...]) -> Path:
    folder = save(ragged(20))
    np.save(folder / f"{name}.npy", np.zeros(shape, "float32"))
    return folder


@pytest.mark.parametrize(
    ("shape", "rule", "reason"),
    [
        ((20, 20, 5), "unusual extent", r"axis 2 is 5, where 20 of 21 arrays have 6"),
        ((200, 20, 6), "far extent", r"axis 0 is 200, more than 4 times the median \d\d"),
        ((20, 3, 6), "far extent", r"axis 1 is 3, less than 1/4 of the median \d\d"),
        ((0, 20, 6), "empty", r"no elements, shape \(0, 20, 6\)"),
    ],
    ids=["five channels", "large", "small", "empty"],
)
def test_an_odd_file_is_named_with_its_rule(found, save, shape, rule, reason):
    info = found(odd_file(save, "odd", shape))
    assert rules(info) == [(rule, "odd.npy")]
    assert re.fullmatch(reason, info["suspects"][0]["reason"])


def test_two_files_or_three_are_not_judged(found, save):
    assert found(save([(10, 10), (100, 10), (10, 2)]))["suspects"] == []


def test_an_extent_that_a_fifth_of_the_files_has_is_not_unusual(found, save):
    assert found(save([(10, 6)] * 8 + [(10, 5)] * 2))["suspects"] == []


def test_unreadable_files_are_listed_and_the_others_described(found, run, save):
    folder = save(ragged(6))
    whole = (folder / "0003.npy").read_bytes()
    (folder / "0003.npy").write_bytes(whole[:-1])
    (folder / "text.npy").write_text("hello")
    np.save(folder / "words.npy", np.array(["a", "b"]))
    info = found(folder)
    assert (info["n_files"], info["n_items"]) == (8, 5)
    assert rules(info) == [
        ("unreadable", "0003.npy"),
        ("unreadable", "text.npy"),
        ("unreadable", "words.npy"),
    ]
    assert "the file was truncated" in info["suspects"][0]["reason"]
    output = run(folder).output
    assert output.count(str(folder / "text.npy")) == 1  # the reason names it already


def test_the_table_lists_ten_files_of_a_rule(run, found, save):
    save([(2, 3)] * 14, "uint8", prefix="a")
    folder = save([(2, 3)] * 15)
    output = run(folder).output
    assert len(re.findall(r"^  another kind +\S+a\d+\.npy: ", output, re.M)) == 10
    assert re.search(r"^  another kind +and 4 more files; --json lists all *$", output, re.M)
    assert len(found(folder)["suspects"]) == 14


# ---- the command


def test_the_table_shows_what_was_found(run, tmp_path, save):
    save([(10, 20)] * 30, "float64", folder="tree/cat")
    save([(20, 40)] * 10, "float64", folder="tree/dog")
    result = run(tmp_path / "tree")
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert "  classes        2: cat (30), dog (10)" in lines
    assert "  items          40, 112.0 kB as stored" in lines
    assert "  shapes         2: (10, 20) x 30, (20, 40) x 10" in lines
    assert re.search(r"^  1 +20 +20 +20 +20 +40 +40 +40 +\S+ +\S+$", result.output, re.M)
    memory = ("256.0 kB", "128.0 kB", "64.0 kB", "32.0 kB", "44%", "0")
    assert re.search(r"^  max +\(20, 40\) +" + " +".join(memory) + "$", result.output, re.M)
    assert "\x1b" not in result.output


def test_brackets_in_a_name_are_shown(run, tmp_path):
    np.save(tmp_path / "a[red]b.npy", np.zeros(3))
    assert "a[red]b.npy" in run(tmp_path / "a[red]b.npy").output


def test_a_terminal_without_unicode_gets_other_bars(save):
    result = CliRunner(charset="ascii").invoke(main, ["info", str(save(ragged(9)))])
    assert result.exit_code == 0, result.output
    assert result.output.isascii()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["missing"],
            1,
            "Error: missing: expected a file, a folder or a glob, got nothing there\n",
        ),
        (["broken"], 1, "Error: expected at least one readable file of 1, got none; first: broken"),
        (["mixed", "--sample-axis", "-1"], 2, "--sample-axis"),
        (["mixed", "--labels", "some"], 2, "--labels"),
        ([], 2, "Missing argument 'PATH'"),
    ],
    ids=["missing", "broken", "axis", "labels", "no path"],
)
def test_an_error_is_one_line(run, monkeypatch, tmp_path, save, arguments, code, message):
    save([(2,)], folder="mixed")
    save([(2,)], folder="mixed/sub")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.npy").write_text("hello")
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.output
    assert result.stdout == ""
    assert code == 2 or result.output.count("\n") == 1


def test_files_and_folders_are_read_together_without_labels(found, save):
    save([(2,)], folder="mixed/sub")
    info = found(save([(2,)] * 2, folder="mixed"), "--labels", "none")
    assert (info["n_items"], info["classes"]) == (3, None)


@pytest.mark.parametrize("messy", ["a file beside folders", "an empty folder"])
def test_folders_that_are_no_class_tree_are_told(found, save, tmp_path, messy):
    folder = save([(2,)], folder="messy/sub").parent
    if messy == "an empty folder":
        (folder / "empty").mkdir()
    else:
        save([(2,)], folder="messy")
    info = found(folder)
    assert info["n_items"] == (1 if messy == "an empty folder" else 2)
    assert info["classes"] is None
    assert [suspect["rule"] for suspect in info["suspects"]] == ["folders"]


def test_a_warning_of_open_is_told(found, run, tmp_path, save):
    for tree in ("first", "second"):  # it is told once of a folder
        for name in ("1", "2", "10"):
            save([(2,)], folder=f"{tree}/{name}")
    (warning,) = found(tmp_path / "first")["warnings"]
    assert "class folders are numbers" in warning
    assert re.search(r"^  note +.*class folders are numbers", run(tmp_path / "second").output, re.M)


def test_the_keys_are_those_of_the_manual(found, save):
    manual = MANUAL.partition("### JSON of info")[2]
    documented = set(re.findall(r"`(\w+)`", manual))

    def keys(value) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for each in value.values() for key in keys(each)}
        return {key for each in value for key in keys(each)} if isinstance(value, list) else set()

    folder = save(ragged(5))
    (folder / "bad.npy").write_text("")
    by_dtype = {"float64", "float32", "float16", "uint8"}
    assert documented >= keys(found(folder)) - by_dtype


def test_a_link_to_no_file_is_unreadable(found, save):
    folder = save([(2,)] * 2)
    (folder / "link.npy").symlink_to("nowhere")
    assert rules(found(folder)) == [("unreadable", "link.npy")]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (15_300_000_000, "15.3 GB"),
        (2 * 10**15, "2000.0 TB"),
    ],
)
def test_sizes_have_units(nbytes, text):
    assert size(nbytes) == text
