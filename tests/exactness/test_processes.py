from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from torch.utils.data import DataLoader

from tests.exactness.processes import in_new_process


def die_with_workers(path):
    batches = iter(DataLoader(range(8), num_workers=2))
    next(batches)
    Path(path).write_text(json.dumps([worker.pid for worker in batches._workers]))
    os.kill(os.getpid(), signal.SIGKILL)


def lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_is_killed_leaves_no_workers_behind(tmp_path):
    assert in_new_process(die_with_workers, str(tmp_path / "workers")) == -signal.SIGKILL
    workers = json.loads((tmp_path / "workers").read_text())
    assert len(workers) == 2
    limit = time.monotonic() + 60  # torch's workers look every five seconds
    while any(map(lives, workers)) and time.monotonic() < limit:
        time.sleep(0.2)
    assert not any(map(lives, workers))
