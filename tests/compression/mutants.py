"""Compression as it is got wrong, each by one change of source text.

By file: (what is changed: a function, a class, or None for the module; what stands there; what
stands there instead). The checks of `test_mutants.py` must notice every one.
"""

from importlib import import_module

from tests.tensor_parallel.mutants import rewritten

PRUNING = {
    "ties all pruned": (
        "magnitude_mask",
        "    kept[order[: round(sparsity * weight.numel())]] = 0\n",
        "    least = magnitude[order[max(round(sparsity * weight.numel()) - 1, 0)]]\n"
        "    kept[magnitude <= least] = 0\n",
    ),
    "rounded down": ("magnitude_mask", "round(sparsity * weight.numel())",
                     "int(sparsity * weight.numel())"),
    "by value, not by magnitude": ("magnitude_mask", "weight.detach().abs()", "weight.detach()"),
    "the earlier mask forgotten": ("magnitude_mask", "if mask is not None:", "if False:"),
    "the largest pruned": ("magnitude_mask", "argsort(stable=True)",
                           "argsort(stable=True, descending=True)"),
    "the mask not applied": ("Masks", "parameter.masked_fill_(mask == 0, 0)", "pass"),
    "only gradients masked": ("Masks", "parameter.masked_fill_(mask == 0, 0)",
                              "parameter.grad is None or parameter.grad.mul_(mask)"),
    "sparsity of what is left": (
        "Masks",
        "magnitude_mask(parameter, sparsity, self.of.get(parameter))",
        "magnitude_mask(parameter, sparsity * self.of[parameter].mean().item()"
        " if parameter in self.of else sparsity)",
    ),
    "each time a mask of its own": ("Masks", ", self.of.get(parameter))", ")"),
    "kernels by their largest number": ("prune_kernels", ".sum(dim=(2, 3))", ".amax(dim=(2, 3))"),
    "single numbers of kernels": (
        "prune_kernels",
        "magnitude_mask(sizes, fraction)[:, :, None, None].expand_as(weight).clone()",
        "magnitude_mask(weight, fraction)",
    ),
    "kernels stay in the weight": ("prune_kernels", "weight.mul_(mask)", "pass"),
}  # fmt: skip

CHANNELS = {
    "the largest channels gone": ("prune_channels", "descending=True", "descending=False"),
    "kept in order of size": ("prune_channels", ".sort().values", ""),
    "the next layer's first channels": ("prune_channels", "old.weight[:, kept]",
                                        "old.weight[:, : len(kept)]"),
    "the norm's first channels": ("prune_channels", "value[kept]", "value[: len(kept)]"),
    "numbers of a channel interleaved": (
        "prune_channels",
        "by_channel[:, kept].flatten(1)",
        "by_channel.flatten(1).unflatten(1, (numbers_a_channel, -1))[:, :, kept].flatten(1)",
    ),
    "the first biases": ("prune_channels", "old.bias[kept]", "old.bias[: len(kept)]"),
    "the given layers changed": ("prune_channels", "copy.deepcopy(old)", "old"),
    "by filters of the sum": ("prune_channels", "detach().abs().sum", "detach().sum"),
}  # fmt: skip

SHARING = {
    "values not moved": ("share_weights", "codebook = _means(flat, indices, codebook)", "pass"),
    "values without weights are NaN": ("share_weights", "counts.clamp(min=1), codebook)",
                                       "counts, sums / counts)"),
    "to the next value above": ("share_weights", "(ordered[1:] + ordered[:-1]) / 2",
                                "ordered[:-1]"),
    "the codebook not sorted": ("share_weights", "codebook.argsort(stable=True)",
                                "torch.arange(len(codebook))"),
    "a mean over all": ("share_weights", "sums / counts.clamp(min=1)", "sums / len(flat)"),
    "the codebook is not trained": ("SharedWeight", "self.codebook[self.indices]",
                                    "self.codebook.detach()[self.indices] + 0 * self.codebook[0]"),
    "pruned weights add to the gradient": (
        "SharedWeight",
        "shared * self.mask",
        "shared + (shared * self.mask - shared).detach()",
    ),
}  # fmt: skip

HUFFMAN = {
    "the most frequent joined first": (None, "(count, symbol, [symbol]) for",
                                       "(-count, symbol, [symbol]) for"),
    "a lone symbol has no bits": (None, "lengths[heap[0][1]] = 1", "pass"),
    "lengths not shifted": (None, "code <<= length - before", "pass"),
    "a joined pair counts as its rarer": (None, "(rare + next_rare, tie", "(rare, tie"),
    "filling bits are symbols": (None, "if len(symbols) == num_symbols:", "if False:"),
    "codes by length only": (None, "sorted((n, symbol) for", "sorted((n, -symbol) for"),
}  # fmt: skip

FILES = {
    "a weight after a full gap": (None, "        if gap < longest:\n            mask[place] = 1\n"
                                  "            place += 1\n",
                                  "        mask[place] = 1\n        place += 1\n"),
    "the longest gap one longer": (None, "longest = 2**gap_bits - 1\n", "longest = 2**gap_bits\n"),
    "codes of pruned places stored": (None, "value.indices[value.mask != 0].tolist()",
                                      "value.indices.flatten().tolist()"),
    "the codebook in 16 bits": (None, "_bytes(value.codebook.float())",
                                "_bytes(value.codebook.half().float())"),
    "integers one too low": (None, "2 ** (bits - 1) - 1  # from 0", "2 ** (bits - 1) - 2"),
}  # fmt: skip

LOW_RANK = {
    "the smallest singular values": (
        "low_rank",
        "        root = s[:rank]",
        "        u, s, v = u.flip(1), s.flip(0), v.flip(0)\n        root = s[:rank]",
    ),
    "values not divided among both": ("low_rank", "s[:rank].sqrt()", "s[:rank]"),
    "all values in one factor": ("low_rank", "u[:, :rank] * root",
                                 "u[:, :rank] * root**2") ,
    "no bias": ("low_rank", "second.bias.copy_(linear.bias)", "second.bias.zero_()"),
    "break-even not below": ("break_even_rank", "(m * n - 1) // (m + n)", "m * n // (m + n)"),
    "break-even of a side": ("break_even_rank", "(m * n - 1) // (m + n)", "min(m, n) // 2"),
}  # fmt: skip

QUANTIZATION = {
    "rounded down": ("to_integers", ".round()", ".floor()"),
    "one integer too many": ("to_integers", "2 ** (bits - 1) - 1", "2 ** (bits - 1)"),
    "scale of the mean": ("to_integers", "abs().amax()", "abs().mean()"),
    "scale from the signed largest": ("to_integers", "abs().amax()", "amax()"),
    "three values": ("sign", "torch.where(x >= 0, 1.0, -1.0).to(x.dtype)", "x.sign()"),
    "the gradient clipped, not stopped": ("sign", "gradient * (x.abs() <= 1)",
                                          "gradient.clamp(-1, 1)"),
    "the gradient stopped at 1": ("sign", "x.abs() <= 1", "x.abs() < 1"),
    "the scale of all for each output": ("binarize", "if by_output else", "if False else"),
    "the largest as scale": ("binarize", "magnitude.mean", "magnitude.amax"),
    "quantised layers clamped, too": ("clamp_latent", "isinstance(part[0], Binary)", "True"),
    "clamped to what is positive": ("clamp_latent", ".clamp_(-1, 1)", ".clamp_(0, 1)"),
}  # fmt: skip

DISTILLATION = {
    "no T squared": ("distillation_loss", "alpha * temperature**2 * soft", "alpha * soft"),
    "T once": ("distillation_loss", "temperature**2", "temperature"),
    "a mean over the classes": ("distillation_loss", '"batchmean"', '"mean"'),
    "a sum over the batch": ("distillation_loss", '"batchmean"', '"sum"'),
    "the teacher is trained": ("distillation_loss", "teacher_logits.detach()", "teacher_logits"),
    "the student not warmed": ("distillation_loss", "student_logits / temperature",
                               "student_logits"),
    "student and teacher exchanged": (
        "distillation_loss",
        "functional.kl_div(",
        "(lambda a, b, **how: functional.kl_div(b, a, **how))(",
    ),
    "alpha on the labels": ("distillation_loss", "(1 - alpha) * hard", "alpha * hard"),
}  # fmt: skip

FILE_OF = {
    "pruning": PRUNING,
    "channels": CHANNELS,
    "sharing": SHARING,
    "huffman": HUFFMAN,
    "files": FILES,
    "low_rank": LOW_RANK,
    "quantization": QUANTIZATION,
    "distillation": DISTILLATION,
}
MUTANTS = {
    f"{module}: {name}": (module, *change)
    for module, changes in FILE_OF.items()
    for name, change in changes.items()
}


def mutant(name):
    """The changed function, class or module."""
    module, attribute, old, new = MUTANTS[name]
    changed = rewritten(import_module(f"pedagogy.compression.{module}"), old, new)
    return getattr(changed, attribute) if attribute else changed


def original(name):
    """What the mutant was before it was changed."""
    module, attribute, _, _ = MUTANTS[name]
    found = import_module(f"pedagogy.compression.{module}")
    return getattr(found, attribute) if attribute else found
