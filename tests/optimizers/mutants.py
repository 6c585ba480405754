"""Optimizers as they are got wrong, each by one change of source text.

By file: (the class that is changed; what stands there; what stands there instead). The checks of
`test_mutants.py` must notice every one.
"""

from importlib import import_module

from tests.tensor_parallel.mutants import rewritten

ADAM = {
    "no correction of the mean": ("Adam", 'value=-group["lr"] / (1 - beta1**step)',
                                  'value=-group["lr"]'),
    "no correction of the square": ("Adam", "(square / (1 - beta2**step))", "square.clone()"),
    "eps under the root": ("Adam", '.sqrt_().add_(group["eps"])', '.add_(group["eps"]).sqrt_()'),
    "betas exchanged": ("Adam", "beta1, beta2 = group", "beta2, beta1 = group"),
    "the square of the mean": ("Adam", "lerp_(gradient.square(),", 'lerp_(state["mean"].square(),'),
    "one step number for all": ("Adam", 'state["step"] = state.get("step", 0) + 1',
                                'state["step"] = group["t"] = group.get("t", 0) + 1'),
    "a missing gradient is an old one": (
        "Adam",
        "if parameter.grad is None or",
        "parameter.grad = self.__dict__.setdefault('old', {}).setdefault(parameter,"
        " parameter.grad) if parameter.grad is None else parameter.grad\n"
        "                self.__dict__.setdefault('old', {})[parameter] = parameter.grad\n"
        "                if parameter.grad is None or",
    ),
    "a third moment is kept": (
        "Adam",
        '            state["mean"] = torch.zeros_like(parameter)\n',
        '            state["mean"] = torch.zeros_like(parameter)\n'
        '            state["third"] = torch.zeros_like(parameter)\n',
    ),
    "the loaded step is forgotten": (
        "Adam",
        'state = copy.deepcopy(state_dict["state"][number])\n',
        'state = copy.deepcopy(state_dict["state"][number]) | {"step": 0}\n',
    ),
}  # fmt: skip

ADAFACTOR = {
    "no eps in the squares": ("Adafactor", '.add_(group["eps"][0])', ""),
    "rows for columns": ("Adafactor", '("columns", -2)', '("columns", -1)'),
    "not divided by the rows' mean": ("Adafactor", "rows / rows.mean(-1, keepdim=True)", "rows"),
    "divided by the mean of all outer ones": ("Adafactor", "rows.mean(-1, keepdim=True)",
                                              "rows.mean()"),
    "the rate of the step before": ("Adafactor", '1 - state["step"] **',
                                    '1 - max(state["step"] - 1, 1) **'),
    "not clipped": ("Adafactor", "update /= max(1.0,", "update /= min(1.0,"),
    "clipped by the largest": ("Adafactor", 'rms(update) / group["clip_threshold"]',
                               'update.abs().max() / group["clip_threshold"]'),
    "the first two dimensions factored": (
        "Adafactor", '("rows", -1), ("columns", -2)',
        '("rows", min(1, square.dim() - 1)), ("columns", 0)'),
    "the rate written to the group": ("Adafactor", '    return rate * max(',
                                      '    group["lr"] = rate * 0.99\n    return rate * max('),
    "not scaled by the parameter": ("Adafactor", 'rate * max(group["eps"][1], rms(parameter))',
                                    "rate"),
    "all squares kept": ("Adafactor", 'state[name] = state.get(',
                         'state["all"] = square\n        state[name] = state.get('),
}  # fmt: skip

SM3 = {
    "the bound without this step": ("SM3", "nu = least(covers, square) + square",
                                    "nu = least(covers, square)"),
    "the largest cover": ("SM3", "torch.minimum(nu, other)", "torch.maximum(nu, other)"),
    "covers by sums": ("SM3", "flatten(1).amax(1)", "flatten(1).sum(1)"),
    "covers only of the first dimension": ("SM3", "for other in shaped[1:]:", "for other in ():"),
    "covers that are added up": ("SM3", "cover.copy_(largest(nu, dim))",
                                 "cover.add_(largest(nu, dim))"),
    "without the root": ("SM3", "gradient / nu.sqrt()", "gradient / nu"),
    "the first for the second": ("SM3", 'sm3_one if group["variant"] == 1 else sm3_two',
                                 "sm3_one"),
    "a number for each weight": (
        "SM3", 'sizes = parameter.shape or (1,)\n',
        'sizes = parameter.shape or (1,)\n            state["nu"] = torch.zeros_like(parameter)\n'),
    "momentum that adds up": ("SM3", 'mean.lerp_(update, 1 - group["momentum"])',
                              'mean.mul_(group["momentum"]).add_(update)'),
    "sums in the parameter's 16 bits": (
        "SM3", "gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))",
        "pass"),
}  # fmt: skip

ADAM8BIT = {
    "one block for all": ("Adam8bit", '"block_size": block_size,', '"block_size": 10**6,'),
    "moments kept in 32 bits": ("Adam8bit", 'if parameter.numel() >= group["min_numel"]',
                                "if False"),
    "small tensors rounded, too": ("Adam8bit", 'if parameter.numel() >= group["min_numel"]',
                                   "if True"),
    "signs lost": ("Adam8bit", 'signed=name == "mean"', "signed=False"),
    "the largest doubled": ("Adam8bit", "return Blocks(codes.to(torch.uint8), largest)",
                            "return Blocks(codes.to(torch.uint8), 2 * largest)"),
    "always the code below": ("Adam8bit", "(table[1:] + table[:-1]) / 2", "table[1:]"),
    "a square of the rounded mean": ("Adam8bit", "gradient.float().square()", "mean.square()"),
}  # fmt: skip

FILE_OF = {"adam": ADAM, "adafactor": ADAFACTOR, "sm3": SM3, "adam8bit": ADAM8BIT}
MUTANTS = {
    f"{module}: {name}": (module, *change)
    for module, changes in FILE_OF.items()
    for name, change in changes.items()
}


def mutant(name):
    """The changed class."""
    module, attribute, old, new = MUTANTS[name]
    return getattr(rewritten(import_module(f"pedagogy.optimizers.{module}"), old, new), attribute)
