"""Chapter 01: what `check` says to natural answers, right and wrong."""

from __future__ import annotations

import pytest
import torch

from pedagogy.collectives import (
    halving_doubling_all_reduce,
    naive_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from pedagogy.exercises import engine
from pedagogy.exercises.chapter01 import AVERAGE
from pedagogy.exercises.chapter01_asynchronous import REPLAYED
from pedagogy.exercises.chapter01_halving import HALVING
from pedagogy.exercises.chapter01_rings import RING


def _collective(group, x):
    return group.all_reduce(x)


def _averaged_in_place(group, parameters):
    for parameter in parameters:
        group.all_reduce_(parameter.grad, "mean")


def _one_tensor_in_the_list(weights, read_versions, gradient, learning_rate):
    versions = [weights.clone()]
    newest = weights.clone()
    for v, read in enumerate(read_versions):
        newest.sub_(learning_rate * gradient(versions[read], v))
        versions.append(newest)
    return newest


@pytest.mark.parametrize("exercise", [RING, HALVING], ids=lambda one: one.name)
def test_an_all_reduce_from_messages_does_not_call_the_collective(exercise):
    assert "uses the collective all_reduce" in engine.explain(exercise, _collective)


@pytest.mark.parametrize(
    ("exercise", "way"), [(RING, ring_all_reduce), (HALVING, halving_doubling_all_reduce)]
)
def test_the_package_s_own_algorithm_is_accepted(exercise, way):
    assert engine.explain(exercise, way).startswith(engine.CORRECT)


@pytest.mark.parametrize("way", [naive_all_reduce, tree_all_reduce])
def test_whole_tensors_are_too_many_bytes_for_a_ring(way):
    assert "bytes, and 144 are enough" in engine.explain(RING, way)


def test_a_ring_takes_more_messages_than_halving_and_doubling():
    assert "messages for 2 tensors, and 8 are enough" in engine.explain(HALVING, ring_all_reduce)


def test_averaging_in_place_is_accepted():
    assert engine.explain(AVERAGE, _averaged_in_place).startswith(engine.CORRECT)


def test_one_tensor_updated_in_place_is_explained():
    assert "one tensor many times" in engine.explain(REPLAYED, _one_tensor_in_the_list)


def test_the_arguments_of_a_recursion_stay_as_they_are():
    weights = torch.tensor([4.0])
    REPLAYED.reference(weights, [0, 0], lambda w, v: w, 0.5)
    assert weights.item() == 4.0
