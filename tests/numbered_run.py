"""Runs over 23 labelled items with two crops each, and what their batches hold, as plain data."""

from __future__ import annotations

import json

import gpuload as gl

CROP = gl.RandomCrop((3, 2), per_array=2)
EXTRAS = ("index", "crop", "start", "valid")


def make(source, batch_size=4, **options):
    options = {"shuffle": True, "seed": 5, "crop": CROP, "extras": EXTRAS, "threads": 2} | options
    return gl.DataLoader(source, batch_size, **options)


def rows(batch):
    """Everything about each sample of a batch, as plain data."""
    return [
        (x.numpy().tobytes(), *(column.tolist() for column in columns))
        for x, *columns in zip(*batch, strict=True)
    ]


def samples(batches):
    return [row for batch in batches for row in rows(batch)]


def take(iterator, n):
    return [next(iterator) for _ in range(n)]


def through_json(state):
    return json.loads(json.dumps(state))


def resumed(source, state, *arguments, **options):
    loader = make(source, *arguments, **options)
    loader.load_state_dict(through_json(state))
    return loader
