"""The link by itself: order, speed, counters, errors, threads; and the same calls on a GPU."""

import threading

import pytest
import torch

from pedagogy.ranks import Link, host_buffer, open_link

BOTH = ["to_host", "to_device"]


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_what_arrives_is_what_was_sent(way, shape, dtype):
    link = Link()
    source = (torch.randn(shape) * 3).to(dtype)
    into = torch.zeros(shape, dtype=dtype)
    copy = getattr(link, way)(source, into, "a name")
    assert copy.wait() is into
    assert copy.finish() is into
    assert torch.equal(into, source)
    sent = {"to_host": link.to_host_bytes, "to_device": link.to_device_bytes}
    assert sent.pop(way) == source.nbytes
    assert list(sent.values()) == [0]
    (event,) = link.trace
    assert (event.kind, event.name, event.nbytes) == (way, "a name", source.nbytes)
    assert (event.rank, event.start <= event.end) == ({"to_device": 1, "to_host": 2}[way], True)


def test_a_strided_tensor_arrives_in_a_new_buffer_without_its_graph():
    x = torch.arange(12.0, requires_grad=True).view(3, 4)
    found = Link().to_host(x.t()[1:]).finish()
    assert torch.equal(found, x.detach().t()[1:])
    assert not found.requires_grad
    assert found.untyped_storage().nbytes() == found.nbytes


def test_a_direction_copies_in_the_order_of_the_calls_and_the_other_goes_on_meanwhile():
    link = Link(bytes_per_second=1e6)
    small, large = torch.ones(1), torch.ones(25_000)  # 0.1 s
    copies = [
        link.to_host(large, name="0"),
        link.to_host(small, name="1"),
        link.to_device(small, torch.zeros(1), "there"),
    ]
    for copy in copies:
        copy.finish()
    names = [event.name for event in sorted(link.trace, key=lambda event: event.end)]
    assert names == ["there", "0", "1"]
    first, second = link.trace.of("to_host")
    assert first.end - first.start >= large.nbytes / 1e6
    assert second.start >= first.start + large.nbytes / 1e6


def test_the_speed_holds_over_many_copies_and_an_idle_link_saves_nothing_up():
    link = Link(bytes_per_second=1e6)
    link.to_host(torch.ones(1)).finish()
    copies = [link.to_host(torch.ones(250)) for _ in range(10)]  # a millisecond each
    copies[-1].finish()
    spans = link.trace.of("to_host")
    assert spans[-1].end - spans[1].start >= 10e-3


def test_what_the_host_computes_is_computed_by_its_own_thread_and_errors_arrive():
    link = Link()
    name = link.on_host(lambda: threading.current_thread().name)
    assert name.startswith("host")
    with pytest.raises(ZeroDivisionError):
        link.on_host(lambda: 1 // 0)
    assert link.on_host(lambda a, b: a + b, 1, 2) == 3


def test_a_failed_copy_raises_at_wait_and_at_finish_and_the_next_one_works():
    link = Link()
    copy = link.to_host(torch.ones(3), torch.zeros(4))
    for ask in (copy.wait, copy.finish):
        with pytest.raises(RuntimeError, match="must match the size"):
            ask()
    assert torch.equal(link.to_host(torch.ones(3)).finish(), torch.ones(3))


def test_close_ends_the_threads_after_what_they_were_given():
    before = set(threading.enumerate())
    link = Link(bytes_per_second=4e6)
    into = torch.zeros(1000)
    link.to_host(torch.ones(1000), into)
    link.to_device(torch.ones(1000), torch.zeros(1000))
    link.on_host(int)
    assert len(set(threading.enumerate()) - before) == 3
    link.close()
    assert set(threading.enumerate()) <= before
    assert into.all()
    with pytest.raises(RuntimeError, match="after shutdown"):
        link.to_host(torch.ones(1))


def test_a_link_that_is_not_used_has_no_threads():
    before = set(threading.enumerate())
    links = [Link() for _ in range(20)]
    assert set(threading.enumerate()) <= before  # others' may end meanwhile
    del links


@pytest.mark.parametrize("speed", [0, -1.0])
def test_a_speed_that_is_not_positive_is_refused(speed):
    with pytest.raises(ValueError, match="must be positive"):
        Link(speed)


def test_a_link_of_a_cpu_is_opened_without_cuda_and_without_pinned_memory():
    link = open_link()
    assert type(link) is Link
    assert open_link("cpu", 1e9).bytes_per_second == 1e9
    with pytest.raises(ValueError, match="cuda:0 has a real link"):
        open_link("cuda:0", 1e9)
    buffer = host_buffer(torch.ones(2, 3, dtype=torch.bfloat16), torch.float32)
    assert (buffer.shape, buffer.dtype, buffer.is_pinned()) == ((2, 3), torch.float32, False)
