"""Chapter 02b: what `check` says to natural orders of replicated stages, right and wrong."""

import pytest

from pedagogy.exercises import engine
from pedagogy.exercises.chapter02b_replicas import REPLICAS, round_robin_order
from pedagogy.pipeline import one_f_one_b, pipedream_replicated


def said(exercise, function) -> str:
    return engine.explain(exercise, function)


@pytest.mark.parametrize(("replicas", "m"), [([2, 1, 1], 8), ([3, 2], 12), ([1, 4, 2], 8)])
def test_the_reference_order_is_the_package_s_without_updates(replicas, m):
    wanted = [
        [tuple(action) for action in actions if action.kind != "U"]
        for actions in pipedream_replicated(replicas, m)
    ]
    assert round_robin_order(replicas, m) == wanted


def test_an_order_for_single_stages_lacks_the_replicas():
    def single(replicas, m):
        return one_f_one_b(len(replicas), m)

    assert "a list is wanted for each of the 4 ranks, not 3" in said(REPLICAS, single)


def test_all_forwards_first_on_replicas_holds_too_much():
    def forwards_first(replicas, m):
        orders = round_robin_order(replicas, m)
        return [sorted(order, key=lambda action: action[0] == "B") for order in orders]

    text = said(REPLICAS, forwards_first)
    assert "All forwards first is GPipe's order" in text
    assert "the ranks hold 4, 4, 8, 8 minibatches at once, and 2, 2, 2, 1 are enough" in text


def test_a_warm_up_of_noam_is_one_forward_too_many():
    def noam_in_the_warm_up(replicas, m):
        schedule = []
        for stage, count in enumerate(replicas):
            for replica in range(count):
                mine = list(range(replica, m, count))
                warm = -(-sum(replicas[stage:]) // count)
                forwards = [("F", stage, k) for k in mine]
                order, forwards = forwards[:warm], forwards[warm:]
                for k in mine:
                    order += [*forwards[:1], ("B", stage, k)]
                    forwards = forwards[1:]
                schedule.append(order)
        return schedule

    assert "One forward too many" in said(REPLICAS, noam_in_the_warm_up)


def test_one_forward_one_backward_from_the_start_lets_the_ranks_behind_wait():
    def in_turn(replicas, m):
        return [
            [(kind, stage, k) for k in range(replica, m, count) for kind in "FB"]
            for stage, count in enumerate(replicas)
            for replica in range(count)
        ]

    assert "Without a warm-up" in said(REPLICAS, in_turn)
