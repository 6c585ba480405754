"""Offloading as it is got wrong, each by one change of source text.

By file: (what stands there, what stands there instead). Some would read memory that has been given
back, and end the process: those are left out.
"""

from importlib import import_module
from types import SimpleNamespace

from tests.tensor_parallel.mutants import rewritten

LINK = {
    "a change during a copy is not noticed": ("if source._version != version:", "if False:"),
}

HOST_COPY = {
    "what is evicted keeps its memory": (".resize_(0)", ".nbytes()"),
    "a gradient replaces the last": (
        "host.grad = gradient if host.grad is None else host.grad.add_(gradient)",
        "host.grad = gradient",
    ),
    "gradients are dropped": ("        if arrived:\n", "        if not arrived:\n"),
    "only the last gradient is taken": (
        "for copy in self._gradients]",
        "for copy in self._gradients[-1:]]",
    ),
    "the device's gradient stays": ("        parameter.grad = None\n", ""),
    "the host rounds to 16 bits": (
        "dtype = torch.float32 if parameter.dtype in _HALF else",
        "dtype =",
    ),
    "values go down without a cast": ("if self.host.dtype == self.parameter.dtype:", "if True:"),
    "the host's values are not settled": (
        "            self._fetched.finish()\n",
        "            pass\n",
    ),
    "old values count as current": (
        "return self.host._version == self._versions[0]",
        "return True",
    ),
    "what changed on the device is overwritten": ("if self.parameter._version !=", "if None and"),
}

PARAMETERS = {
    "nothing leaves": ("if layer not in coming or", "if False and"),
    "one layer too many": ("use + self.prefetch + 1]", "use + self.prefetch + 2]"),
    "one layer too few": ("use + self.prefetch + 1]", "use + max(self.prefetch, 1)]"),
    "the layer before is dropped and fetched again": (
        "if layer not in coming or",
        "if layer != self._uses[use] or",
    ),
    "a layer does not wait for its copy": (
        "        for copy in self._of_layer[self._uses[use]]:\n            copy.wait()\n",
        "",
    ),
    "backward in the order of forward": ("== _NONE else len(self._uses) - 1 - index", "else index"),
    "the end of backward is not noticed": (
        "execution_engine.queue_callback(self._end)",
        "execution_engine",
    ),
    "gradients are not taken": ("            copy.take_gradients()\n", ""),
}

ACTIVATIONS = {
    "each saving is sent": ("if away is None or not away.holds(tensor):", "if True:"),
    "what changed is not sent again": ("or not away.holds(tensor)", ""),
    "a view without its offset": ("saved.stride, saved.offset)", "saved.stride, 0)"),
    "one too many comes back early": ("[: self.prefetch]", "[: self.prefetch + 1]"),
    "the later ones come back early": ("reverse=True", "reverse=False"),
    "parameters are sent": ("isinstance(base, nn.Parameter) or ", ""),
    "a change in place is not noticed": ("self.witness._version != self.version", "False"),
}

OPTIMIZER = {
    "the new values stay on the host": ("copy.host.grad is not None)", "False)"),
    "the new values are not waited for": ("            copy.wait()\n", "            pass\n"),
    "what did not change is sent": (" if copy.host.grad is not None)", ")"),
    "the step does not take the gradients": (
        "        self.take_gradients()\n        self._settle()\n",
        "",
    ),
    "the host's values are not settled": (
        "        self._settle()\n        self.link.on_host",
        "        self.link.on_host",
    ),
    "the states are made on the device": (
        "self.link.on_host(self.optimizer.step)",
        "self.optimizer.step()",
    ),
    "a saved state goes on changing": ("self.link.on_host(deepcopy, state)", "state"),
}

SIMULATE = {
    "room for one more": ("[0.0] * (prefetch + 1)", "[0.0] * (prefetch + 2)"),
    "a layer does not wait for its copy": ("start = max(ended[-1], copied)", "start = ended[-1]"),
    "copies go side by side": ("= max(copied, ended[layer])", "= ended[layer]"),
    "layers stay": ("        held &= set(coming)\n", ""),
    "one use too few": ("use + prefetch + 1]", "use + max(prefetch, 1)]"),
}  # fmt: skip

FILES = {
    "link": LINK,
    "host_copy": HOST_COPY,
    "parameters": PARAMETERS,
    "activations": ACTIVATIONS,
    "optimizer": OPTIMIZER,
    "simulate": SIMULATE,
}
MUTANTS = {
    f"{file}: {name}": (file, *change)
    for file, changes in FILES.items()
    for name, change in changes.items()
}
NAMES = (
    "Link",
    "HostCopy",
    "OffloadedModule",
    "OffloadedOptimizer",
    "offload_activations",
    "simulate_offload",
    "transfers",
)


def system(name=None):
    """All of offloading with one change, or none: its names, each file using the changed others."""
    changed, *change = MUTANTS[name] if name else (None,)
    found = SimpleNamespace()
    for file in FILES:
        module = import_module(f"pedagogy.{'ranks' if file == 'link' else 'offload'}.{file}")
        made = rewritten(module, *(change if file == changed else ("", "")))
        for used in NAMES:
            if hasattr(made, used):
                vars(made)[used] = vars(found).get(used, getattr(made, used))
                setattr(found, used, getattr(made, used))
    return found
