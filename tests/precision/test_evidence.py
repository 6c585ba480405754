"""The chapter's evidence is what it says, on numbers that are known otherwise."""

import math

import pytest
import torch
from torch.nn import functional

from pedagogy.costs.precision import PRECISIONS, gpt_bytes
from pedagogy.precision import (
    FORMATS,
    GradientRecord,
    histogram_of,
    range_shares,
    record_gradients,
)
from pedagogy.precision.evidence import (
    DTYPES,
    ROWS,
    autocast_dtypes,
    large_batch,
    layer_tensors,
    query_gradients,
    removed,
    seconds_by_precision,
    small_gpt,
    step_bytes,
    sum_errors,
    together,
    token_losses,
)
from pedagogy.precision.recorded import (
    LARGE_SCHEMES,
    LARGE_STEPS,
    POINT_STEPS,
    RECORDED_STEPS,
    points,
    provenance,
    record_large_batch,
    record_removals,
    recorded_large_batch,
    recorded_removals,
)
from pedagogy.workloads import text_batch


def test_all_gradients_of_a_kind_are_counted_together_and_another_kind_is_refused():
    small, large = histogram_of(torch.tensor([0.0, 1.0])), histogram_of(torch.tensor([4.0]))
    records = [
        GradientRecord(0, "a", "weight", small),
        GradientRecord(1, "b", "weight", large),
        GradientRecord(1, "b", "activation", large),
    ]
    found = together(records, "weight")
    assert (found.num_values, found.zeros) == (3, 1)
    assert together(records, "activation").num_values == 1
    with pytest.raises(ValueError, match="no record of kind 'bias'"):
        together(records, "bias")


def query_gradient(num_tokens):
    """Of the first layer's queries, by a hook of the test's own."""
    model, kept = small_gpt(), []
    model.blocks[0].attention.query.register_forward_hook(
        lambda module, inputs, output: output.register_hook(kept.append) and None
    )
    model.loss(*text_batch(num_tokens // 32, 32)).backward()
    return kept[0]


def test_the_share_that_underflows_is_that_of_the_gradients_cast():
    gradient = query_gradient(512)
    found = query_gradients(512)
    for log2_scale in (0, 3):
        shares = range_shares(gradient * 2.0**log2_scale, torch.float16)
        assert found.shares(log2_scale)["underflow"] == pytest.approx(shares["underflow"], abs=1e-4)
    assert 0 < found.shares(3)["underflow"] < found.shares()["underflow"] < 0.5


def test_only_the_keys_gradients_underflow_more_often_than_the_queries():
    still = torch.optim.SGD(small_gpt().parameters(), lr=0.0)
    records = record_gradients(small_gpt(), lambda step: text_batch(32, 32), still, 1)
    shares = {
        record.layer.removeprefix("blocks."): record.histogram.shares()["underflow"]
        for record in records
        if record.kind == "activation"
    }
    above = {layer for layer, share in shares.items() if share > shares["0.attention.query"]}
    assert {"0.attention.key", "1.attention.key"} <= above
    assert above <= {"0.attention.key", "1.attention.key", "1.attention.query"}


def test_weights_grow_and_updates_shrink_while_the_gpt_is_trained():
    model = small_gpt()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    sizes = []
    for step in range(40):
        before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer.zero_grad()
        model.loss(*text_batch(16, 32, step=step)).backward()
        optimizer.step()
        update = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - before
        sizes.append((before.abs().mean().item(), update.abs().mean().item()))
    assert sizes[-1][0] > 1.2 * sizes[0][0]
    assert sizes[-1][1] < 0.5 * sizes[0][1]


def test_an_update_can_be_lost_from_2048_on_and_always_is_from_4096_on():
    weights = torch.arange(0x3800, 0x4400).to(torch.int16).view(torch.float16)  # 0.5 to 4
    lost = {}
    for ratio in (2047, 2048, 3000, 4096):
        update = (weights.double() / ratio).half()
        lost[ratio] = ((weights + update) == weights).double().mean().item()
    assert lost[2047] == 0 < lost[2048] < lost[3000] < lost[4096] == 1


def test_tokens_that_are_no_whole_sequences_are_refused():
    for call in (query_gradients, layer_tensors, token_losses):
        with pytest.raises(ValueError, match=r"33 tokens: must be a multiple of 32"):
            call(33)


def test_errors_of_sums_grow_with_the_length_and_with_fewer_digits():
    lengths = [8, 64, 512]
    errors = {name: sum_errors(lengths, FORMATS[name].dtype) for name in ("fp32", "fp16", "bf16")}
    assert all(found == sorted(found) for found in errors.values())
    assert all(b > h > s for s, h, b in zip(*errors.values(), strict=True))
    assert sum_errors([512], torch.float64) == [0.0]


def test_the_layers_tensors_give_its_weights_gradient():
    x, gradient = layer_tensors(64, log2_scale=4)
    model = small_gpt()
    model.loss(*text_batch(2, 32)).backward()
    right = 16 * model.blocks[0].feed_forward.expand.weight.grad
    torch.testing.assert_close(gradient.T @ x, right)


def test_the_mean_of_the_token_losses_is_the_models_loss():
    losses = token_losses(96)
    assert losses.shape == (96,)
    torch.testing.assert_close(losses.mean(), small_gpt().loss(*text_batch(3, 32)).detach())


def test_what_autocast_returns_is_seen_for_inputs_of_both_dtypes():
    weight = torch.randn(4, 4)
    operations = {
        "product": lambda x: functional.linear(x, weight),
        "sum": lambda x: x + x,
        "loss": lambda x: functional.mse_loss(x, x),
    }
    wide, half = torch.float32, torch.bfloat16
    assert autocast_dtypes(operations, torch.randn(4, 4), half) == {
        "product": (half, half),
        "sum": (wide, half),
        "loss": (wide, wide),
    }


def test_every_row_starts_from_the_same_loss_and_only_some_lose_updates():
    runs = {row: removed(row, seed=1, steps=2) for row in ROWS}
    first = {row: run.losses[0].item() for row, run in runs.items()}
    assert max(first.values()) - min(first.values()) < 0.02
    lossy = {row for row, run in runs.items() if run.lost_share > 0}
    assert lossy == {"no master weights", "bf16, no master weights"}
    assert runs["fp16"].scales.tolist() == [65536.0] * 2
    assert runs["no loss scaling"].scales.tolist() == runs["bf16"].scales.tolist() == [1.0] * 2
    with pytest.raises(ValueError, match="no row 'fp8'"):
        removed("fp8", 0, 1)


def test_a_large_batch_is_trained_on_that_many_tokens():
    runs = [large_batch("fp32", tokens, steps=2).losses for tokens in (64, 128)]
    assert all(run.shape == (2,) and run.isfinite().all() for run in runs)
    assert not torch.equal(*runs)


@pytest.mark.parametrize("way", PRECISIONS)
def test_the_bytes_of_a_step_are_the_closed_form(way):
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "sequence": 8, "batch": 3}
    assert step_bytes(way, **sizes) == gpt_bytes(way, **sizes)


def test_seconds_are_measured_for_every_precision():
    found = seconds_by_precision("cpu", size=8)
    assert list(found) == ["product, n = 8", "step of the GPT"]
    assert all(list(one) == list(DTYPES) and min(one.values()) > 0 for one in found.values())


# --- what is recorded ---------------------------------------------------------------------------


def test_every_row_is_recorded_for_three_seeds_and_says_how():
    rows = recorded_removals()
    assert list(rows) == list(ROWS)
    for name, run in rows.items():
        assert run.losses.shape == (3, RECORDED_STEPS // POINT_STEPS)
        assert run.losses.isfinite().all()
        assert len(run.num_skipped) == len(run.zero_share) == 3
        assert [math.isnan(share) for share in run.lost_share] == ["no master" not in name] * 3
        assert run.final == run.losses[:, -1].tolist()
    assert "removed(row, seed, steps=400), seeds [0, 1, 2]" in provenance()


def test_the_large_batch_is_recorded_by_step_and_fails_without_a_scale():
    large = recorded_large_batch()
    assert list(large) == list(LARGE_SCHEMES)
    assert all(losses.shape == (LARGE_STEPS,) for losses in large.values())
    assert (large["fp16"] - large["fp32"]).abs().max() < 0.1
    assert large["no loss scaling"][-1] > large["fp32"][-1] + 0.5
    assert "large_batch(scheme, tokens=262144, steps=20)" in provenance()


def test_the_beginning_of_the_record_is_what_runs_here():
    live = points(removed("bf16", seed=0, steps=POINT_STEPS).losses)
    assert abs(live[0] - recorded_removals()["bf16"].losses[0, 0]) < 0.3


def test_a_record_is_read_as_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr("pedagogy.measure.recordings.files", lambda package: tmp_path)
    monkeypatch.setattr("pedagogy.precision.recorded.ROWS", {"bf16": ROWS["bf16"]})
    record_removals(tmp_path / "recorded_removals.csv", seeds=[3], steps=POINT_STEPS)
    run = recorded_removals()["bf16"]
    right = removed("bf16", 3, POINT_STEPS)
    assert run.final == pytest.approx([right.losses.mean().item()], abs=1e-3)
    record_large_batch(tmp_path / "recorded_large_batch.csv", tokens=32, steps=2)
    right = large_batch("fp32", 32, 2).losses
    torch.testing.assert_close(recorded_large_batch()["fp32"], right, atol=1e-4, rtol=0)
