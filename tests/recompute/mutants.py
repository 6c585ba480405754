"""Recomputation as it is got wrong, each by one change of source text.

By file: (what stands there, what stands there instead).
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pedagogy.recompute as original

CHECKPOINT = {
    "other random numbers": ("            restore_rng_state(self.random)\n", ""),
    "the stream goes on from the second run": (
        "            stack.callback(restore_rng_state, outside)\n",
        "",
    ),
    "no autocast the second time": (
        "                stack.enter_context(torch.autocast(kind, dtype))\n",
        "                pass\n",
    ),
    "a batch counts twice": ("            stack.enter_context(_buffers_put_back())\n", ""),
    "it stops one tensor too early": (
        "if len(found) == len(self.shapes):",
        "if len(found) == len(self.shapes) - 1:",
    ),
    "it does not stop": ("if len(found) == len(self.shapes):", "if False:"),
    "the stop can be swallowed": ("class _AllFound(BaseException)", "class _AllFound(Exception)"),
    "a change in place is not noticed": ("if number in self.changed:", "if False:"),
    "inputs need no gradient": (".requires_grad_(needs)", ""),
}

SEGMENTS = {
    "a segment is cut off by one": (
        "x = checkpoint(_chain(layers[first:last]), x)",
        "x = checkpoint(_chain(layers[first : last - 1]), x)",
    ),
    "the rest keeps all slots": ("max(1, slots - 1)", "slots"),
    "the first part has one slot fewer": (
        "layers[:cut], slots)",
        "layers[:cut], max(1, slots - 1))",
    ),
    "the second best cut": ("range(1, length),\n", "range(2, length + 1),\n"),
    "one repetition too many": (
        "comb(slots + repetitions, slots + 1)",
        "comb(slots + repetitions, slots)",
    ),
}

POLICIES = {
    "segments are off by one": ("segments.append([])\n", "segments.append([layer])\n"),
    "memory runs n - 1, ..., 0 times": (
        "[n - i for i in range(n)]",
        "[n - i - 1 for i in range(n)]",
    ),
    "the limit is compared the other way": ("all_of_it <= limit", "all_of_it > limit"),
    "the limit is not reached": ("all_of_it <= limit", "all_of_it < limit"),
    "gradients are forgotten": ("2 * (outputs[i] + outputs[i + 1])", "outputs[i] + outputs[i + 1]"),
    "what a segment reads is forgotten": (
        "sum(outputs[layers[0] : layers[-1] + 2])",
        "sum(outputs[layers[0] + 1 : layers[-1] + 2])",
    ),
    "a budget that is not kept passes": ("if budget is not None and peak > budget:", "if False:"),
}

WRITES = {
    "a collective writes nothing": (
        "    if not is_own(func):\n        return tensors_in((args, kwargs))\n",
        "",
    ),
    "nothing is written in place": ("[arguments.get(name) for name in writes]", "[]"),
    "a batch counts twice": ("if _counts(func, args) else args", "if False else args"),
    "the statistics are written unseen": (
        "    if _counts(func, args):\n        return tensors_in(args[3:5])\n",
        "",
    ),
}

MADE = {
    "random numbers are drawn again": ("not (random or writes or", "not (writes or"),
    "memory is made before it is filled": (
        """not (random or writes or "empty" in self.name)""",
        "not (random or writes)",
    ),
    "what others compute runs again": (
        "func._schema.is_mutable or not is_own(func)",
        "func._schema.is_mutable",
    ),
    "what was written is made again": (
        "self.is_pure and output not in self.written",
        "self.is_pure",
    ),
    "all views begin at the start": (
        "tensor.stride(), tensor.storage_offset()",
        "tensor.stride(), 0",
    ),
    "writes are not counted": (
        "with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):",
        "if True:",
    ),
    "a change of what was read passes": (
        "return self.made.writes != self.writes or self.counter._version != self.version",
        "return False",
    ),
    "a change after the block passes": (" or self.counter._version != self.version", ""),
    "a change of weights passes": ("return version(self.tensor) != self.version", "return False"),
}

AGAIN = {
    "what stays is made for each": (
        "            sibling.again = results[sibling.key[1]]\n",
        "            pass\n",
    ),
    "alone stays": (" and sibling.op is asked.op", ""),
    "siblings of the one asked for do not stay": (
        "sibling.action == ALONE and sibling.op is asked.op",
        "sibling is asked",
    ),
    "what is there is made again": ("if not x.made.is_there]", "]"),
    "all stay until the end": ("if last_read[k] > one.op.number}", "if True}"),
    "casts are cast again": (", torch._C._DisableAutocast():", ":"),
    "a changed input passes": ("if any(x.is_stale for x in", "if any(False for x in"),
    "in any order": ("for number in sorted(found)]", "for number in sorted(found, reverse=True)]"),
}

TAPE = {
    "a change of what was saved passes": ("        if packed.is_stale:\n", "        if False:\n"),
    "all is held on to": (
        "alias(tensor) if made.action == KEEP else None",
        "alias(tensor)",
    ),
    "the tape knows all that lives": ("        self._living.clear()\n", ""),
    "the rule is asked about everything": ("if made.repeats else KEEP", "if True else KEEP"),
    "the last swapped is called last": ("sorted(away)[-1:]", "sorted(away)[:1]"),
    "calls come one too late": (
        "self.calls.get(len(self.asked), ())",
        "self.calls.get(len(self.asked) - 1, ())",
    ),
    "what was written does not stay": ("alias(x) if made.pending else None", "None"),
    "a conjugate is its own": ("not (tensor.is_conj() or tensor.is_neg())", "True"),
}

WATCH = {
    "gone one operation early": ("self.look(-1)", "self.look(-2)"),
    "asks are not marked": ("if not isinstance(packed, Held):", "if False:"),
}

PROFILE = {
    "buffers move": ("            buffer.copy_(value)\n", "            pass\n"),
    "random numbers move": ("        restore_rng_state(random)\n", ""),
    "a held result goes": ("len(watched.ops) + 1", "len(watched.ops)"),
}

PREDICT = {
    "what stays is counted twice": ("                nbytes = 0\n", ""),
    "results on the way are free": (
        "sum(made_now.values()) + sum(op.nbytes.values())",
        "sum(op.nbytes.values())",
    ),
    "alone stays": ("(action == ALONE and op.number == asked)", "action == ALONE"),
    "a node never ends": (
        "                    self.pending[key] -= 1\n",
        "                    pass\n",
    ),
    "nobody else needs it": ("self.profile.saved[key].gone <= number and is_over", "is_over"),
    "copies side by side": ("max(self.clock, self.link_free[way])", "self.clock"),
    "nobody waits": ("        self.clock = max(self.clock, until)\n", ""),
    "running again takes no time": (
        '            self._compute("R", self.profile.name((number, 0)), op.seconds)\n',
        "",
    ),
}

DECIDE = {
    "free time with the wrong sign": ("key=lambda key: -free[key]", "key=lambda key: free[key]"),
    "calls too late": ("if second <= latest]", "if second <= latest + 1]"),
    "calls at the first ask": ("max(in_time, default=0)", "min(in_time, default=0)"),
    "calls forget the later ones": (
        "min(latest, asked_at[saved.asks[0]])",
        "asked_at[saved.asks[0]]",
    ),
    "the worst price": ("best = max(trials", "best = min(trials"),
    "seconds do not count": ("/ max(added, 1e-9)", "/ 1.0"),
    "no second thoughts": ("return _without_needless(", "return chosen or _without_needless("),
    "nothing is taken back": (
        "            if before.actions.get(key, KEEP) != action\n",
        "            if before.actions.get(key, KEEP) == KEEP != action\n",
    ),
    "what lowers nothing leaves": (" and _over(trial, budget) < _over(chosen, budget)", ""),
    "stuck is stuck": ("for price in (_price, _bytes_saved)", "for price in (_price, _price)"),
    "the limit is compared the other way": ("(profile, ops) <= limit", "(profile, ops) > limit"),
    "products run again": ("names & (EXPENSIVE | _AT_THE_END)", "names & _AT_THE_END"),
    "segments are not joined": ("in segments if segment[0] & ops]", "in segments if False]"),
}

FILES = {  # in the order in which they import each other
    "checkpoint": CHECKPOINT,
    "segments": SEGMENTS,
    "policies": POLICIES,
    "writes": WRITES,
    "made": MADE,
    "again": AGAIN,
    "tape": TAPE,
    "selective": {},
    "watch": WATCH,
    "profile": PROFILE,
    "predict": PREDICT,
    "decide": DECIDE,
}
MUTANTS = {
    f"{file}: {name}": (file, *change)
    for file, changes in FILES.items()
    for name, change in changes.items()
}


def system(name=None):
    """All of recomputation with one change, or none: its names."""
    changed, old, new = MUTANTS[name] if name else (None, "", "")
    package, found = original.__name__, SimpleNamespace()
    before = {key: sys.modules.pop(key) for key in list(sys.modules) if key.startswith(package)}
    try:
        sys.modules[package] = ModuleType(package)
        for file in FILES:
            source = Path(original.__path__[0], f"{file}.py").read_text(encoding="utf-8")
            if file == changed:
                assert source.count(old) == 1, name
                source = source.replace(old, new)
            module = sys.modules[f"{package}.{file}"] = ModuleType(f"{package}.{file}")
            exec(compile(source, f"{file}.py", "exec"), vars(module))
            vars(found).update(vars(module))
    finally:
        for key in [key for key in sys.modules if key.startswith(package)]:
            del sys.modules[key]
        sys.modules.update(before)
    return found
