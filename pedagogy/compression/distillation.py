"""Distillation: a small network learns what a large one answers, not only what is right.

Why it exists
-------------
A label says "3". The large network's answer says "3, a little like an 8, hardly like a 1": it
holds what it has learned about likeness. A *temperature* T makes that visible: softmax(z / T) is
flatter, and small probabilities come into play.

The loss, and why T squared
---------------------------
    alpha T^2 KL(teacher || student, both at T) + (1 - alpha) cross-entropy(student, label)

The gradient of the first term with respect to a logit is (1/T)(q_T - p_T), and q_T - p_T itself is
of order 1/T: together 1/T^2. Multiplied by T^2 it keeps its size, whatever T is, and alpha means
the same at every temperature.

KL is the *mean over the batch* of the sum over classes; a mean over both divides by the number of
classes as well. The teacher is not trained: no gradient reaches it.

Source: Hinton, Vinyals, Dean 2015, section 2.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    temperature: float,
    alpha: float,
) -> Tensor:
    """alpha T^2 KL(teacher || student) + (1 - alpha) cross-entropy.

    **Shapes** logits `(batch, classes)`, labels `(batch,)` -> (). **Raises** ValueError for other
    or different shapes, a temperature that is not positive, or an alpha outside 0 .. 1.
    Source: Hinton et al. 2015, section 2.
    """
    student, teacher, given = (tuple(t.shape) for t in (student_logits, teacher_logits, labels))
    if student != teacher or len(student) != 2 or given != student[:1] or not given[0]:
        shapes = f"student {student}, teacher {teacher}, labels {given}"
        raise ValueError(f"{shapes}: (batch, classes) twice, and (batch,)")
    if not 0 < temperature < math.inf or not 0 <= alpha <= 1:
        raise ValueError(f"temperature {temperature}, alpha {alpha}: above 0, and from 0 to 1")
    soft = functional.kl_div(
        functional.log_softmax(student_logits / temperature, dim=1),
        functional.log_softmax(teacher_logits.detach() / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    hard = functional.cross_entropy(student_logits, labels)
    return alpha * temperature**2 * soft + (1 - alpha) * hard
