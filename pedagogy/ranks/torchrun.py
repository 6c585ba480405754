"""`launch` under torchrun: the processes exist already, on one machine or on several.

    torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 script.py

runs the script once for each rank. Here `launch` starts nothing: it joins the process group of all
of them, runs the worker, and gathers the results, so that each rank gets the same `Run` as it would
from a launch on one machine. Rank 0 prints. A rank that fails says so on stderr, with its
traceback; torchrun then ends the others.

Clocks differ between machines: each rank's events count from its own return from one barrier.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import io
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from pedagogy.ranks import pickling
from pedagogy.ranks.group import Group
from pedagogy.ranks.launch import Run
from pedagogy.ranks.machine import Placement, place
from pedagogy.ranks.process import BASE_SEED, failure_of, seed_everything
from pedagogy.ranks.report import raised
from pedagogy.ranks.trace import Trace
from pedagogy.ranks.watch import Log


def join_and_run(
    worker: Callable[..., Any],
    world_size: int,
    args: tuple,
    kwargs: dict,
    device: str,
    timeout: float,
) -> Run:
    """Join torchrun's group, run the worker here, and return every rank's result on every rank.

    **Raises** ValueError where torchrun started another number of processes than `world_size`.
    """
    started = int(os.environ["WORLD_SIZE"])
    if started != world_size:
        raise ValueError(
            f"torchrun started {started} processes, but launch asks for {world_size}; start "
            f"{world_size} (nnodes x nproc-per-node), or pass world_size={started}"
        )
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", started))
    placement = place(local_ranks, device)
    log = Log(int(os.environ["RANK"]))
    group = _join(placement, log, timeout)
    captured = io.StringIO()
    try:
        with contextlib.redirect_stdout(captured):
            result = pickling.dump_result(worker(group, *args, **kwargs))
    except BaseException as error:
        sys.stderr.write(captured.getvalue())
        failure = failure_of(error, log.rank)
        raise raised(failure, world_size) from None
    return _gather(result, captured.getvalue(), group, placement, log)


def _join(placement: Placement, log: Log, timeout: float) -> Group:
    device = placement.device_of(int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(placement.backend, timeout=datetime.timedelta(seconds=timeout))
        atexit.register(_leave)
    seed_everything(BASE_SEED + log.rank)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(placement.threads)
    dist.barrier()
    log.zero = time.perf_counter()
    ranks = range(dist.get_world_size())
    return Group(dist.group.WORLD, ranks, log, device, staged=placement.staged)


def _leave() -> None:
    """The process group is gone before the process: gloo's threads abort one that ends first."""
    failed = getattr(sys, "last_value", None) is not None  # then NCCL might wait for the others
    if dist.is_initialized() and not failed:
        dist.destroy_process_group()


def _gather(result: bytes, output: str, group: Group, placement: Placement, log: Log) -> Run:
    log.settle()
    mine = pickle.dumps((result, log.events, output))
    everyone: list[bytes] = [b""] * group.size
    if group.size > 1:
        dist.all_gather_object(everyone, mine)
    else:
        everyone = [mine]
    parts = [pickle.loads(part) for part in everyone]
    texts = [text for _, _, text in parts]
    if log.rank == 0 and (text := "".join(texts)):
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    events = [event for _, events, _ in parts for event in events]
    return Run([pickling.load(value) for value, _, _ in parts], Trace(events), texts, placement)
