"""Measure resident memory over the epochs of crop2d, above the interpreter with torch.

    python -m bench.memory LOADER BATCH_SIZE EPOCHS

prints MiB of anonymous memory, of mapped file pages and of both after each epoch, above what the
process had after `import torch`, and the peak. Pages of mapped data files count although the kernel
may take them back at any time.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch  # the baseline of the measurement

from bench import data, use_installed_package

LOADERS = {
    "gpuload": ("gpuload_rows", 0),
    'gpuload, io="pread"': ("gpuload_rows", 1),
    "torch (d), 0 workers": ("torch_rows", 6),
    "torch (a), 0 workers": ("torch_rows", 0),
}
FIELDS = {"anonymous": "RssAnon", "file pages": "RssFile", "shared": "RssShmem", "peak": "VmHWM"}


def status() -> dict[str, float]:
    """Return MiB of this process by kind, as /proc/self/status counts them."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[field].split()[0]) / 1024 for name, field in FIELDS.items()}


def main(loader: str, batch_size: int, n_epochs: int) -> dict[str, Any]:
    torch.zeros(1) + 1
    gc.collect()
    base = status()
    base_total = base["anonymous"] + base["file pages"] + base["shared"]
    module, row = LOADERS[loader]
    rows = importlib.import_module(f"bench.peers.{module}").crop2d_rows(data.crop2d(), batch_size)
    peer = next(iter(rows[row].settings.values()))()
    del rows
    stream = peer.batches()
    per_epoch = -(-data.EPOCH // batch_size)
    epochs = []
    for _ in range(n_epochs):
        for _x, _y in islice(stream, per_epoch):
            pass
        now = status()
        above = {name: now[name] - base[name] for name in ("anonymous", "file pages", "shared")}
        epochs.append({**above, "total": sum(above.values()), "peak": now["peak"] - base_total})
    peer.close()
    return {"base": base_total, "epochs": epochs}


if __name__ == "__main__":
    use_installed_package()
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
