"""The choice of device and backend, on machines that are described and not owned."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pedagogy.ranks import doctor, machine


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that this machine has some GPUs of some size (the arithmetic needs no GPU)."""

    def pretend(count, num_bytes=15 * 10**9, capability=(7, 5)):
        properties = SimpleNamespace(
            total_memory=num_bytes, name="T4", major=capability[0], minor=capability[1]
        )
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)

    return pretend


def test_L10_as_many_gpus_as_ranks_means_nccl_with_one_each(gpus):
    gpus(4)
    placement = machine.place(4)
    assert (placement.backend, placement.staged) == ("nccl", False)
    assert [placement.device_of(rank).index for rank in range(4)] == [0, 1, 2, 3]


def test_L10_more_ranks_than_gpus_share_them_over_gloo_and_say_why(gpus):
    gpus(1)
    placement = machine.place(4)
    assert (placement.backend, placement.staged, placement.device_type) == ("gloo", True, "cuda")
    assert [placement.device_of(rank).index for rank in range(4)] == [0] * 4
    assert "NCCL refuses" in placement.reason


def test_no_gpu_means_gloo_on_the_cpu_with_the_same_cell(gpus):
    gpus(0)
    assert machine.place(4).backend == "gloo"
    with pytest.raises(ValueError, match="shows no GPU"):
        machine.place(4, "cuda")


def test_a_gpu_can_be_left_alone(gpus):
    gpus(2)
    assert machine.place(2, "cpu").device_type == "cpu"


def test_L15_contexts_are_budgeted_before_anything_starts(gpus):
    gpus(1, num_bytes=15 * 10**9)
    assert machine.place(15).staged
    with pytest.raises(ValueError, match=r"16 ranks on 1 GPU.*0\.5 GB each.*at most 15 ranks"):
        machine.place(16)


def test_L16_bf16_is_decided_by_the_hardware(gpus):
    assert not machine.has_bf16_hardware((7, 5))
    assert machine.has_bf16_hardware((8, 0))
    gpus(1)
    assert "no bf16" in str(doctor())


def test_host_memory_is_budgeted(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 3 * 10**9)
    machine.check_memory(10)
    with pytest.raises(
        ValueError, match=r"11 ranks need about 1\.6 GB.*3\.0 GB are free.*10 ranks"
    ):
        machine.check_memory(11)


def test_doctor_says_what_was_chosen_and_why(gpus):
    gpus(0)
    text = str(doctor(world_size=3))
    assert "3 ranks" in text
    assert "processes on the CPU over gloo: no GPU was found" in text
