"""Orders and crop starts that users rely on, frozen in golden/order.json.

A failure here means that the same seed gives another run than in an earlier version: experiments
stop being reproducible, and a saved state_dict goes on at the wrong samples. Do not renew the file:
undo the change, or make a new state schema and say so in the changelog.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl

CASES = json.loads((Path(__file__).parent / "golden" / "order.json").read_text())


def open_items(folder, n_items, shape):
    for i in range(n_items):
        np.save(folder / f"{i:04}.npy", np.zeros(shape, np.uint8))
    return gl.open(folder)


@pytest.mark.parametrize("case", CASES, ids=[case["what"] for case in CASES])
def test_the_order_is_as_ever(tmp_path, case):
    crop = case.get("random_crop")
    loader = gl.DataLoader(
        open_items(tmp_path, case["n_items"], case["shape"]),
        crop=None if crop is None else gl.RandomCrop(tuple(crop["size"]), crop["per_array"]),
        extras=("index", "crop", "start"),
        **case["arguments"],
    )
    loader.set_epoch(case["epoch"])
    batches = list(loader)
    for name in ("index", "crop", "start"):
        if name in case:
            got = np.concatenate([getattr(batch, name) for batch in batches])
            assert got[: len(case[name])].tolist() == case[name], name


def test_a_state_is_as_ever(tmp_path):
    loader = gl.DataLoader(open_items(tmp_path, 10, (3,)), 4, shuffle=True, seed=3)
    next(iter(loader))
    assert loader.state_dict() == {
        "schema": 1,
        "epoch": 0,
        "samples": 4,
        "seed": 3,
        "shuffle": True,
        "samples_per_epoch": 10,
        "data": "006eb2aedeec901c",
    }
