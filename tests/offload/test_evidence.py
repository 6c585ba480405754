"""The evidence of chapter 07: what is called equal is, and what is counted is what there is."""

import pytest
import torch
from torch import nn

from pedagogy.costs.offload import TECHNIQUES as NAMES
from pedagogy.measure import BudgetExceeded
from pedagogy.offload import transfers
from pedagogy.offload.evidence import (
    TECHNIQUES,
    copied_layers,
    free_step,
    from_zero,
    kept_after_forward,
    paced_step,
    predicted_step,
    saved_while_running,
    timed_steps,
    train_gpt,
)
from pedagogy.ranks import Event

SMALL = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 16}


def plain_training(steps):
    """The same training, written out: no wrapper, no meter."""
    from pedagogy.workloads import GPT, text_batch

    torch.manual_seed(0)
    model = GPT(**SMALL)
    adam = torch.optim.Adam(model.parameters())
    for step in range(steps):
        adam.zero_grad()
        model.loss(*text_batch(2, 16, step=step)).backward()
        adam.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    "offloaded", [(), *[(name,) for name in TECHNIQUES], TECHNIQUES], ids="+".join
)
def test_each_technique_trains_as_without_and_counts_what_crosses_the_link(offloaded):
    run = train_gpt(SMALL, offloaded, steps=3)
    assert torch.equal(run.weights, plain_training(3))
    assert len(run.losses) == 3
    assert (run.to_device_bytes > 0) == (run.to_host_bytes > 0) == bool(offloaded)
    assert run.meter is None


def test_the_names_are_those_of_the_closed_forms():
    assert set(TECHNIQUES) == set(NAMES)
    with pytest.raises(ValueError, match=r"'optimizer' is a string.*\('optimizer',\)"):
        train_gpt({}, "optimizer")
    with pytest.raises(ValueError, match=r"\['weights'\]: choose among parameters, optimizer"):
        train_gpt(SMALL, ("weights",))


def test_a_limit_is_enforced_and_bytes_below_it_are_counted():
    whole = train_gpt(SMALL, limit=10**9, steps=2)
    with pytest.raises(BudgetExceeded):
        train_gpt(SMALL, limit=whole.meter.peak - 1, steps=2)
    assert train_gpt(SMALL, ("optimizer",), limit=whole.meter.peak, steps=2).meter.peak > 0


def test_what_leaves_the_device_is_not_counted_there():
    whole = train_gpt(SMALL, limit=10**9, steps=2).meter.peak_by_kind
    host = train_gpt(SMALL, ("optimizer",), limit=10**9, steps=2).meter.peak_by_kind
    moving = train_gpt(SMALL, ("parameters",), limit=10**9, steps=2, prefetch=0).meter.peak_by_kind
    assert host["optimizer_state"] == 0 < whole["optimizer_state"]
    assert moving["parameters"] < whole["parameters"]
    assert 0 < moving["optimizer_state"] < whole["optimizer_state"]  # of what stays


def test_values_in_files_train_the_same(tmp_path):
    mapped = train_gpt(SMALL, ("parameters", "optimizer"), steps=3, folder=tmp_path)
    assert torch.equal(mapped.weights, plain_training(3))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 4 * 2 * (12 * 256 + 13 * 16)


def test_a_paced_step_copies_what_is_predicted_in_that_order():
    fast = {"layers": 3, "forward": 0.002, "backward": 0.004, "copy": 0.003}
    for prefetch in (0, 1, 2):
        trace = paced_step(prefetch, **fast)
        uses = [0, 1, 2, 2, 1, 0]
        simulated = copied_layers(predicted_step(prefetch, **fast).events)
        assert copied_layers(trace) == [uses[use] for use in simulated]
        assert len(simulated) == sum(transfers(3, prefetch))
        compute = [event for event in trace if event.rank == 0]
        assert [(e.kind, int(e.name)) for e in compute] == list(zip("FFFBBB", uses, strict=True))
        assert all(e.end - e.start >= 0.002 for e in compute)
        assert trace[0].start == 0
    # by hand: 6 copies at depth 0 but one, each 3 ms; at depth 1 the first, then 1 ms twice
    assert predicted_step(0, **fast).stall == pytest.approx(5 * 0.003)
    assert predicted_step(1, **fast).stall == pytest.approx(0.003 + 2 * 0.001)


def test_a_free_step_holds_the_second_step_alone():
    trace = free_step(SMALL)
    compute = [(event.kind, event.name) for event in trace if event.rank == 0]
    assert compute == [("F", "0"), ("F", "1"), ("B", "1"), ("B", "0")]
    assert trace[0].start == 0
    assert set(copied_layers(trace)) == {0, 1}


def test_from_zero_moves_all_events_by_the_same():
    events = [Event(0, "F", "0", 5.0, 7.0), Event(1, "to_device", "layer 0", 4.0, 5.0)]
    moved = [(event.rank, event.start, event.end) for event in from_zero(events)]
    assert moved == [(1, 0.0, 1.0), (0, 1.0, 3.0)]


def test_what_a_kind_of_module_saves_can_be_chosen():
    def loss():
        return net(x).sum()

    net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 128), nn.Sigmoid())
    x = torch.ones(16, 32, requires_grad=True)
    tanh, sigmoid, x_bytes = 4 * 16 * 64, 4 * 16 * 128, 4 * 16 * 32
    # x is older than the block; the second linear saves tanh's output, which tanh saves too
    for wanted, gone in ((lambda _: False, 0), (lambda _: True, x_bytes + tanh + sigmoid)):
        assert kept_after_forward(loss, wanted) == (
            tanh + sigmoid - max(gone - x_bytes, 0) + 4,
            gone,
        )
    wanted = saved_while_running(net, nn.Sigmoid)
    assert kept_after_forward(loss, wanted) == (tanh + 4, sigmoid)


def test_timed_steps_train_the_same_with_and_without():
    (plain, seconds), (offloaded, _) = (timed_steps("cpu", SMALL, is_on) for is_on in (False, True))
    assert torch.equal(plain, offloaded)
    assert seconds > 0
