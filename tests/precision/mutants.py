"""Mixed precision as it is got wrong, each by one change of source text.

By file: (what stands there, what stands there instead). The checks of `test_mutants.py` must
notice every one, and an exercise can recognise an answer by what it computes.
"""

from importlib import import_module

from tests.tensor_parallel.mutants import rewritten

FORMATS = {
    "cut off, not rounded": (".round() * step", ".trunc() * step"),
    "the middle always goes up": ("(wide / step).round()", "(wide / step + 0.5).floor()"),
    "subnormal numbers one digit too fine": ("clamp(min=1 - to.bias)", "clamp(min=-to.bias)"),
    "no subnormal numbers": (
        "step = torch.ldexp(",
        "wide = wide * (exponent > -to.bias)\n    step = torch.ldexp(",
    ),
    "one exponent more than there is": ("rounded.abs() > to.max", "rounded.abs() > 2 * to.max"),
    "the largest number is infinite": ("rounded.abs() > to.max", "rounded.abs() >= to.max"),
}

RANGES = {
    "all below 2^-24 is zero": ("(after == 0)", "(before < to.smallest)"),
    "subnormal by what it was": ("(after < to.smallest_normal)", "(before < to.smallest_normal)"),
    "NaN forgotten": ("~(after <= to.max)", "after > to.max"),
    "zero counts as underflow": ("(before > 0) & ", ""),
}

DOT = {
    "summed in fp32, rounded at the end": (
        "total = (total + term.to(accumulate)).to(accumulate)",
        "total = total + term.float()",
    ),
    "from right to left": ("products.unbind(-1)", "products.flip(-1).unbind(-1)"),
    "inputs not rounded": ("(x.to(dtype) * y.to(dtype))", "(x * y)"),
    "products not rounded": (
        "(x.to(dtype) * y.to(dtype)).to(dtype)",
        "x.to(dtype).float() * y.to(dtype).float()",
    ),
}

MASTERS = {
    "masters made of rounded weights": ("detach().float().clone()", "detach().to(dtype).float()"),
    "the model's weights never change": ("weight.copy_(master)", "pass"),
    "gradients of the weights stay": (
        "else master.grad + gradient\n                weight.grad = None",
        "else master.grad + gradient",
    ),
    "gradients of the masters stay": ("        master.grad = None\n\n", "        pass\n\n"),
    "a second gradient replaces the first": ("master.grad + gradient", "gradient"),
    "what was rounded off is forgotten": (
        "weight.copy_(master)",
        "weight.copy_(master)\n            master.copy_(weight)",
    ),
    "rounded weights are saved": (
        "master.detach().clone() for _, master in self.pairs",
        "weight.detach().clone() for weight, _ in self.pairs",
    ),
    "the optimizer's state is not loaded": ("self.optimizer.load_state_dict", "len"),
}

SCALE = {
    "gradients are not divided": ("gradient.mul_(1 / self._scale)", "pass"),
    "NaN passes": ("not gradient.isfinite().all()", "gradient.isinf().any()"),
    "infinity passes": ("not gradient.isfinite().all()", "gradient.isnan().any()"),
    "only the last gradient counts": (
        "if not gradient.isfinite().all():\n            self._not_finite[id(optimizer)] = True",
        "self._not_finite[id(optimizer)] = not gradient.isfinite().all()",
    ),
    "nothing is skipped": ("            return False\n", "            pass\n"),
    "all skip, or none": (
        "if self._not_finite[id(optimizer)]:",
        "if any(self._not_finite.values()):",
    ),
    "no backoff": ("self._scale *= self.backoff_factor", "pass"),
    "backoff only if all are infinite": ("if any(self._not", "if all(self._not"),
    "a skip does not interrupt the count": (
        "self._scale *= self.backoff_factor\n            self._steps_without = 0",
        "self._scale *= self.backoff_factor",
    ),
    "one step late": ("_steps_without == self", "_steps_without == 1 + self"),
    "grows at every step from then on": (
        "else self._scale\n                self._steps_without = 0",
        "else self._scale\n                self._steps_without -= 1",
    ),
    "grows beyond fp32": ("grown if grown <= LARGEST_SCALE else self._scale", "grown"),
}

SCHEMES = {
    "master weights in every scheme": (
        "wrap = RoundedWeights if scheme",
        "wrap = MasterWeights if scheme",
    ),
    "scaled in every scheme": ("unscaled = scheme ==", "unscaled = False and scheme =="),
    "bf16 scaled": (" or dtype != torch.float16\n    return", "\n    return"),
    "sums in fp32 all the same": ("        accumulate_in_fp16(model)\n", ""),
    "the weight's gradient in fp32": ("matmul(gradient.T, x, *half)", "gradient.T @ x"),
    "the input's gradient in fp32": ("matmul(gradient, weight, *half)", "gradient @ weight"),
    "the losses of a 16-bit type": (
        "loss(model(inputs).float(), targets)",
        "loss(model(inputs), targets)",
    ),
    "gradients of earlier steps stay": ("        optimizer.zero_grad()\n", ""),
    "all updates count as lost": ("(wanted & (weight.detach() == old))", "wanted"),
}

MUTANTS = {
    f"{module}: {name}": (module, *change)
    for module, changes in {
        "formats": FORMATS,
        "ranges": RANGES,
        "dot": DOT,
        "master_weights": MASTERS,
        "loss_scale": SCALE,
        "schemes": SCHEMES,
    }.items()
    for name, change in changes.items()
}


def mutant(name):
    """The changed file, as a module."""
    module, old, new = MUTANTS[name]
    return rewritten(import_module(f"pedagogy.precision.{module}"), old, new)
