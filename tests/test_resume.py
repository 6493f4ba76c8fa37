"""Going on where a run stopped."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from numbered_run import make, resumed, samples, take, through_json

import gpuload as gl


@pytest.fixture
def source(save_arrays):
    """23 items with labels: 46 crops."""
    folder, _ = save_arrays(23, (6, 5))
    return gl.open(folder, labels=np.arange(23) * 10)


# ---- The state


def test_a_state_is_small_readable_json(source):
    loader = make(source)
    iterator = iter(loader)
    take(iterator, 3)
    state = loader.state_dict()
    assert len(json.dumps(state)) < 300
    assert state == through_json(state)
    assert state == {
        "schema": 1,
        "epoch": 0,
        "samples": 12,
        "seed": 5,
        "shuffle": True,
        "samples_per_epoch": 46,
        "data": source.fingerprint(),
    }


def test_prefetched_batches_do_not_count(source):
    loader = make(source, prefetch=10)
    iterator = iter(loader)
    assert loader.state_dict()["samples"] == 0
    for n in range(1, 5):
        next(iterator)
        assert loader.state_dict()["samples"] == 4 * n


def test_a_new_loader_is_at_the_start(source):
    state = make(source).state_dict()
    assert (state["epoch"], state["samples"]) == (0, 0)


def test_a_loaded_state_is_the_state(source):
    loader = make(source)
    take(iter(loader), 5)
    state = loader.state_dict()
    assert resumed(source, state).state_dict() == state


# ---- Resuming


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_a_run_goes_on_at_every_batch(source, shuffle):
    whole = make(source, shuffle=shuffle)
    epochs = [samples(whole), samples(whole)]
    for n in range(13):
        loader = make(source, shuffle=shuffle)
        before = samples(take(iter(loader), n))
        later = resumed(source, loader.state_dict(), shuffle=shuffle)
        if n < 12:  # 12 batches are the whole epoch
            assert before + samples(later) == epochs[0]
        assert samples(later) == epochs[1]


RUNS = {
    "another batch size": {"batch_size": 7},
    "batches of one": {"batch_size": 1},
    "a batch larger than what is left": {"batch_size": 100},
    "more threads": {"threads": 4},
    "fewer threads": {"threads": 1},
    "farther ahead": {"prefetch": 20},
    "positioned reads": {"io": "pread"},
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_goes_on_with_other_settings(source, options):
    whole = make(source)
    epochs = [samples(whole), samples(whole)]
    loader = make(source)
    before = samples(take(iter(loader), 5))
    later = resumed(source, loader.state_dict(), **options)
    assert before + samples(later) == epochs[0]
    assert samples(later) == epochs[1]


def test_a_run_goes_on_at_another_world_size(source):
    whole = make(source)
    epochs = [samples(whole), samples(whole)]
    seen, state = [], make(source).state_dict()
    for world, batch_size, n_steps, n_seen in ((1, 4, 2, 8), (2, 3, 1, 14), (4, 2, 2, 30)):
        ranks = [
            resumed(source, state, batch_size, rank=rank, world_size=world) for rank in range(world)
        ]
        parts = [samples(take(iter(loader), n_steps)) for loader in ranks]
        seen += [row for step in zip(*parts, strict=True) for row in step]
        states = [loader.state_dict() for loader in ranks]
        assert states == [states[0]] * world
        state = states[0]
        assert state["samples"] == len(seen) == n_seen
    loader = resumed(source, state, 5)
    assert seen + samples(loader) == epochs[0]
    assert samples(loader) == epochs[1]


@pytest.mark.parametrize("even", ["pad", "drop", "exact"])
@pytest.mark.parametrize("n_steps", range(5))
def test_ranks_that_share_unevenly_resume_at_one_place(numbered, even, n_steps):
    source = numbered(17)  # 2 ranks, batches of 2: 9 and 8 samples

    def ranks(state=None):
        made = []
        for rank in range(2):
            loader = gl.DataLoader(
                source, 2, rank=rank, world_size=2, even=even, extras=("index", "valid")
            )
            if state is not None:
                loader.load_state_dict(state)
            made.append(loader)
        return made

    def steps(loaders):
        return [
            sorted(
                (i, v) for b in step for i, v in zip(*map(torch.Tensor.tolist, b[1:]), strict=True)
            )
            for step in zip(*loaders, strict=True)
        ]

    whole = steps(ranks())
    made = ranks()
    assert n_steps <= len(whole)
    before = steps([take(iter(loader), n_steps) for loader in made])
    states = [loader.state_dict() for loader in made]
    assert states[0] == states[1]
    if n_steps < len(whole):
        after = steps(ranks(states[0]))
        assert list(itertools.chain(*before, *after)) == list(itertools.chain(*whole))


def test_a_state_saved_twice_in_an_epoch_tells_the_whole_way(source):
    whole = samples(make(source))
    loader = make(source, prefetch=4)
    got = samples(take(iter(loader), 7))
    loader = resumed(source, loader.state_dict())
    got += samples(take(iter(loader), 3))
    state = loader.state_dict()
    assert state["samples"] == 40
    assert got + samples(resumed(source, state)) == whole


@pytest.mark.parametrize("ask_for_the_end", [False, True], ids=["len next() calls", "exhausted"])
def test_a_state_saved_at_the_very_end_starts_the_next_epoch(source, ask_for_the_end):
    whole = make(source)
    epochs = [samples(whole) for _ in range(3)]
    loader = make(source)
    iterator = iter(loader)
    take(iterator, len(loader))
    if ask_for_the_end:
        assert next(iterator, None) is None
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)
    later = resumed(source, state)
    assert [samples(later), samples(later)] == epochs[1:]


def test_a_state_may_be_saved_after_break_until_the_next_epoch_begins(source):
    loader = make(source)
    for n, _ in enumerate(loader, 1):
        if n == 3:
            break
    assert loader.state_dict()["samples"] == 12
    iter(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)


def test_a_run_goes_on_in_another_process(source, run_python, tmp_path):
    whole = samples(make(source))
    loader = make(source)
    n_before = len(samples(take(iter(loader), 6)))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    code = """
        import json, gpuload as gl
        source = gl.open("data", labels=range(0, 230, 10))
        loader = gl.DataLoader(source, 9, shuffle=True, crop=gl.RandomCrop((3, 2), per_array=2),
                               extras=("index", "crop", "start"))
        loader.load_state_dict(json.load(open("state.json")))
        for b in loader:
            print(*zip(b.index.tolist(), b.crop.tolist(), b.start.tolist()), sep="\\n")
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    want = [str(tuple(row[2:5])) for row in whole[n_before:]]
    assert done.stdout.splitlines() == want


def test_the_seed_comes_with_the_state(source):
    loader = make(source, seed=99)
    before = samples(take(iter(loader), 2))
    later = resumed(source, loader.state_dict(), seed=1)
    assert later.seed == 99
    assert before + samples(later) == samples(make(source, seed=99))


def test_a_state_holds_after_the_data_have_moved(source, tmp_path):
    loader = make(source)
    before = samples(take(iter(loader), 2))
    whole = samples(make(source))
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    moved = gl.open(tmp_path / "elsewhere", labels=np.arange(23) * 10)
    assert before + samples(resumed(moved, loader.state_dict())) == whole


def test_a_pickled_loader_goes_on_where_it_was(source):
    loader = make(source)
    before = samples(take(iter(loader), 5))
    later = pickle.loads(pickle.dumps(loader))
    assert before + samples(later) == samples(make(source))


# ---- What is refused


def test_other_data_are_refused_with_both_fingerprints(source, save_arrays):
    other = gl.open(save_arrays(23, (6, 6), folder="other")[0])
    state = make(source).state_dict()
    with pytest.raises(
        ValueError,
        match=f"^state: expected data '{other.fingerprint()}' as of this loader, got "
        f"'{source.fingerprint()}'; the state was taken from other data or another order$",
    ):
        make(other).load_state_dict(state)


def test_a_changed_file_is_other_data(source, tmp_path):
    state = make(source).state_dict()
    np.save(tmp_path / "data" / "00007.npy", np.zeros((5, 6), np.float32))
    with pytest.raises(ValueError, match=r"^state: expected data"):
        make(gl.open(tmp_path / "data")).load_state_dict(state)


def test_a_selection_is_other_data(source):
    state = make(source).state_dict()
    loader = make(source.select(range(22, -1, -1)))
    with pytest.raises(ValueError, match=r"^state: expected data"):
        loader.load_state_dict(state)


@pytest.fixture
def state(source):
    loader = make(source)
    take(iter(loader), 2)
    return loader.state_dict()


BAD_STATES = {
    "of another version": ({"schema": 2}, ValueError, "state: expected schema 1, got 2; it is of"),
    "of no version": ({"schema": None}, ValueError, "state: expected schema 1, got None"),
    "past the end": ({"samples": 46}, ValueError, "state: expected samples below 46, got 46"),
    "before the start": ({"samples": -1}, ValueError, "samples: expected 0 or more, got -1"),
    "of half a sample": ({"samples": 1.5}, TypeError, "samples: expected a whole number, got 1.5"),
    "of a negative epoch": ({"epoch": -1}, ValueError, "epoch: expected 0 or more, got -1"),
    "of another order": ({"shuffle": "block"}, ValueError, "expected shuffle True .* got 'block'"),
    "of more crops": ({"samples_per_epoch": 69}, ValueError, "samples_per_epoch 46 .* got 69"),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD_STATES.values(), ids=BAD_STATES)
def test_a_state_that_does_not_fit_is_refused(source, state, change, error, message):
    loader = make(source)
    with pytest.raises(error, match=message):
        loader.load_state_dict(state | change)
    assert (loader.epoch, loader.state_dict()["samples"]) == (0, 0)


@pytest.mark.parametrize("name", ["epoch", "samples", "seed", "data", "shuffle"])
def test_an_incomplete_state_is_refused(source, state, name):
    del state[name]
    with pytest.raises(ValueError, match=f"state: expected {name}, got schema, "):
        make(source).load_state_dict(state)


def test_what_is_no_state_is_refused(source):
    with pytest.raises(TypeError, match="state: expected what state_dict returned, got NoneType"):
        make(source).load_state_dict(None)
