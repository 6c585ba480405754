"""Gradient accumulation as it is got wrong, each by one change of source text.

By file: (what stands there, what stands there instead). The checks of `test_mutants.py` must
notice every one, and an exercise can recognise an answer by what it computes.
"""

from importlib import import_module

from tests.tensor_parallel.mutants import rewritten

SUM = "        add_up(group, [p.grad for p in fill_gradients(group, model.parameters())])\n"
SUM_OF_WINDOW = "            add_up(self.group, [p.grad for p in filled])\n"

ACCUMULATE = {
    "the mean of means": (
        "loss / max(total, 1)",
        "loss / max(int(count(microbatch)), 1) / len(microbatches)",
    ),
    "divided by the micro-batches": ("loss / max(total, 1)", "loss / len(microbatches)"),
    "divided by the last one's items": (
        "loss / max(total, 1)",
        "loss / max(int(count(microbatches[-1])), 1)",
    ),
    "not divided": ("loss / max(total, 1)", "loss / 1"),
    "own items only": (
        "for microbatch in microbatches], group)",
        "for microbatch in microbatches])",
    ),
    "gradients not summed": (SUM, ""),
    "gradients averaged": (
        SUM,
        SUM
        + "        [p.grad.div_(group.size) for p in model.parameters() if p.grad is not None]\n",
    ),
    "summed after the first micro-batch": (
        "        mean += ",
        "        if microbatch is microbatches[0] and group:\n"
        "            add_up(group, [p.grad for p in fill_gradients(group, model.parameters())])\n"
        "        mean += ",
    ),
    "what stood there is kept": ("parameter.grad = None", "pass"),
    "each micro-batch replaces the last": (
        "        loss = loss_sum(model, microbatch)\n",
        "        loss = loss_sum(model, microbatch)\n"
        "        [setattr(p, 'grad', None) for p in model.parameters()]\n",
    ),
    "a tied parameter summed twice": (
        SUM,
        SUM + "        group.all_reduce_(model.middle.weight.grad)\n",
    ),
    "the loss of one rank": ("mean = group.all_reduce(mean.to(group.device)).cpu()", "pass"),
    "the loss of the last micro-batch": ("mean += share", "mean = share"),
}

ACCUMULATOR = {
    "the last window divided by a whole one": (
        "gradient.div_(total)",
        "gradient.div_(total * self.window / len(self._counts))",
    ),
    "the last window dropped": ("return self._step() if self._counts else None", "return None"),
    "one micro-batch late": ("== self.window", "> self.window"),
    "each micro-batch clipped": (
        "            loss.backward()\n",
        "            loss.backward()\n"
        "            clip_by_global_norm([((), [p.grad for p in self.model.parameters()\n"
        "                if p.grad is not None])], self.max_norm)\n",
    ),
    "clipped before it is divided": (
        "            gradient.div_(total)\n"
        "        if self.max_norm is not None:\n"
        "            clip_by_global_norm([((), gradients)], self.max_norm)\n",
        "            pass\n"
        "        clip_by_global_norm([((), gradients)], self.max_norm)\n"
        "        for gradient in gradients:\n"
        "            gradient.div_(total)\n",
    ),
    "never clipped": ("if self.max_norm is not None", "if False"),
    "gradients of the last window stay": ("parameter.grad = None", "pass"),
    "items of the last window stay": (
        "self._counts: list[Any] = []",
        "self._counts: list[Any] = getattr(self, '_counts', [])[-1:]",
    ),
    "own items only": ("num_items(self._counts, self.group)", "num_items(self._counts)"),
    "gradients not summed": (SUM_OF_WINDOW, ""),
    "a tied parameter divided twice": (
        "p.grad for p in unique_parameters(self.model.parameters()) if",
        "p.grad for _, p in self.model.named_parameters(remove_duplicate=False) if",
    ),
    "the loss of one rank": ("self._loss = self.group.all_reduce", "self.group.all_reduce"),
    "the loss of all windows": (
        "self._loss = torch.zeros((), dtype=torch.float64)\n",
        "self._loss = getattr(self, '_loss', torch.zeros((), dtype=torch.float64))\n",
    ),
    "updates not counted": ("self.num_steps += 1", "pass"),
}  # fmt: skip

MUTANTS = {
    f"{module}: {name}": (module, *change)
    for module, changes in {"accumulate": ACCUMULATE, "accumulator": ACCUMULATOR}.items()
    for name, change in changes.items()
}


def mutant(name):
    """The changed function or class."""
    module, old, new = MUTANTS[name]
    changed = rewritten(import_module(f"pedagogy.accumulation.{module}"), old, new)
    return changed.accumulate if module == "accumulate" else changed.GradientAccumulator
