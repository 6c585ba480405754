"""The loss against a loop over rows and classes, and the size of its gradient."""

import math

import pytest
import torch
from torch.nn import functional

from pedagogy.compression import distillation_loss


def logits(batch=5, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(batch, classes, generator=generator, dtype=torch.float64) for _ in (1, 2)]
    labels = torch.randint(classes, (batch,), generator=generator)
    return drawn[0].requires_grad_(), drawn[1].requires_grad_(), labels


def softmax(row, temperature):
    powers = [math.exp(z / temperature) for z in row]
    return [power / sum(powers) for power in powers]


def by_hand(student, teacher, labels, temperature, alpha):
    """Row by row, class by class."""
    total = 0.0
    for z, v, label in zip(student.tolist(), teacher.tolist(), labels.tolist(), strict=True):
        q, p = softmax(z, temperature), softmax(v, temperature)
        kl = sum(b * math.log(b / a) for a, b in zip(q, p, strict=True))
        total += alpha * temperature**2 * kl - (1 - alpha) * math.log(softmax(z, 1)[label])
    return total / len(labels)


def check_loss(loss_of, temperature, alpha):
    """The value of the loop, and no gradient for the teacher."""
    student, teacher, labels = logits()
    loss = loss_of(student, teacher, labels, temperature, alpha)
    expected = by_hand(student, teacher, labels, temperature, alpha)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    loss.backward()
    assert teacher.grad is None
    q, p = (functional.softmax(z.detach() / temperature, 1) for z in (student, teacher))
    hard = functional.softmax(student.detach(), 1) - functional.one_hot(labels, 4)
    right = (alpha * temperature * (q - p) + (1 - alpha) * hard) / len(labels)
    torch.testing.assert_close(student.grad, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_it_is_the_loop_over_rows_and_classes_and_the_teacher_gets_no_gradient(temperature, alpha):
    check_loss(distillation_loss, temperature, alpha)


def test_t_squared_keeps_the_gradients_size_at_every_temperature():
    sizes = []
    for temperature in (10.0, 100.0, 1000.0):
        student, teacher, labels = logits()
        distillation_loss(student, teacher, labels, temperature, 1.0).backward()
        sizes.append(student.grad.norm().item())
    # its limit: (z - v) / (N T^2) times T^2, both with a mean of zero over the classes
    centred = student.detach() - teacher.detach()
    centred -= centred.mean(1, keepdim=True)
    limit = (centred / 4 / 5).norm().item()
    assert sizes == pytest.approx([limit] * 3, rel=0.2)
    assert sizes[-1] == pytest.approx(limit, rel=0.01)


def test_a_student_that_answers_as_its_teacher_has_no_soft_loss():
    student, _, labels = logits()
    loss = distillation_loss(student, student.detach().clone(), labels, 3.0, 1.0)
    assert loss.item() == pytest.approx(0, abs=1e-15)
    loss.backward()
    assert student.grad.abs().max() < 1e-15


def test_huge_logits_are_finite():
    student = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = distillation_loss(student, -student.detach(), torch.tensor([1]), 1.0, 0.5)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()


def test_bad_input_is_refused_with_its_numbers():
    student, teacher, labels = logits()
    for wrong in (teacher[:3], teacher[:, :3]):
        with pytest.raises(ValueError, match=r"student \(5, 4\), teacher \(. ?, ?.\)"):
            distillation_loss(student, wrong, labels, 1.0, 0.5)
    with pytest.raises(ValueError, match=r"labels \(3,\)"):
        distillation_loss(student, teacher, labels[:3], 1.0, 0.5)
    with pytest.raises(ValueError, match=r"student \(0, 4\)"):
        distillation_loss(student[:0], teacher[:0], labels[:0], 1.0, 0.5)
    for temperature in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"temperature {temperature}, alpha 0.5"):
            distillation_loss(student, teacher, labels, temperature, 0.5)
    for alpha in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"temperature 2, alpha {alpha}"):
            distillation_loss(student, teacher, labels, 2, alpha)
