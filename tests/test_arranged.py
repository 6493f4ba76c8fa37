"""Everything that a loader does to windows, together: batches are those of a NumPy twin."""

from __future__ import annotations

from arranged import save, some

import gpuload as gl


def test_all_of_it(tmp_path, check_every_way):
    arrays = [some((6 + i, 9 - i, 3), "u1", i) for i in range(7)]
    source = save(tmp_path / "a", arrays)
    check_every_way(
        source,
        arrays,
        shuffle=True,
        crop=gl.RandomCrop((5, 4, None), 2),
        pad=gl.Pad((8, 9, None), value=2.5),
        flip=(0, 1),
        rot90=None,
        scale=1 / 255,
        mean=(0.1, 0.2, 0.3),
        std=(1, 2, 3),
        layout="NCHW",
        epochs=2,
    )
