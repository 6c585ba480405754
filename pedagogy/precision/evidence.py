"""What the chapter measures on real tensors: gradients by kind, sums, and autocast's dtypes.

Where gradients underflow
-------------------------
A mean loss over T tokens gives each token a gradient of order 1/T. So the share that underflows in
fp16 depends on the number of tokens in a step, which `query_gradients` shows on the GPT's first
step, of attention's queries. Their gradients are small then; only those of the keys are smaller.

Long sums
---------
`sum_errors` adds terms of one sign, the worst case. `layer_tensors` and `token_losses` are real:
what a layer's weight gradient is a sum of, and what a batch's loss is a sum of.

One technique removed
---------------------
`removed` trains the GPT in each of `ROWS`: the same weights, data and learning rate for a seed.
`large_batch` is a smaller GPT with many more tokens a step.

What autocast does, what a step holds, how long it takes
--------------------------------------------------------
`autocast_dtypes` is no list that somebody wrote: it runs each operation and looks at what comes
out. `step_bytes` is read from the memory meter, `seconds_by_precision` from the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.measure import memory_meter
from pedagogy.precision.dot import dot
from pedagogy.precision.histograms import GradientRecord, Histogram, record_gradients
from pedagogy.precision.master_weights import MasterWeights
from pedagogy.precision.schemes import SCHEMES, SchemeRun, token_loss, train_scheme
from pedagogy.workloads import GPT, text_batch

SEQUENCE = 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ROWS = {  # name: scheme, dtype
    **{scheme: (scheme, torch.float16) for scheme in SCHEMES},
    "bf16": ("fp16", torch.bfloat16),
    "bf16, no master weights": ("no master weights", torch.bfloat16),
}


def small_gpt(seed: int = 0) -> GPT:
    """The chapter's GPT: 2 layers, hidden size 32, 32 positions."""
    torch.manual_seed(seed)
    return GPT(hidden=32, sequence=SEQUENCE)


# --- gradients ----------------------------------------------------------------------------------


def together(records: Iterable[GradientRecord], kind: str) -> Histogram:
    """All gradients of one kind ("weight" or "activation") in one histogram.

    **Raises** ValueError if there is none.
    """
    found = [record.histogram for record in records if record.kind == kind]
    if not found:
        raise ValueError(f"no record of kind {kind!r}: must be 'weight' or 'activation'")
    return reduce(add, found)


def query_gradients(num_tokens: int) -> Histogram:
    """Gradients of the first layer's queries in the GPT's first step.

    **Raises** ValueError for tokens that are no whole sequences.
    """
    model, batch = small_gpt(), _sequences(num_tokens)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    records = record_gradients(model, lambda step: text_batch(batch, SEQUENCE), optimizer, 1)
    found = [r for r in records if r.layer == "blocks.0.attention.query"]
    return together(found, "activation")


# --- sums ---------------------------------------------------------------------------------------


def sum_errors(lengths: Sequence[int], accumulate: torch.dtype, rows: int = 64) -> list[float]:
    """Mean relative error of `rows` dot products of each length, of numbers between 0 and 1.

    Inputs and products are numbers of 16 bits, the same for every accumulator: the error is the
    sum's alone.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows, max(lengths), generator=generator).bfloat16().float()
    one = torch.ones_like(x)
    errors = []
    for length in lengths:
        terms = x[:, :length]
        right = terms.double().sum(-1)
        found = dot(terms, one[:, :length], torch.float32, accumulate).double()
        errors.append(((found - right).abs() / right).mean().item())
    return errors


def layer_tensors(num_tokens: int, log2_scale: int = 16) -> tuple[Tensor, Tensor]:
    """Inputs (tokens, in) of a GPT layer, and the scaled gradients (tokens, out) of its outputs.

    The layer is the first one's `feed_forward.expand`, in the first step. The gradient of its
    weight is `gradient.T @ x`: a sum over all tokens.
    """
    model, kept = small_gpt(), {}
    layer = model.blocks[0].feed_forward.expand

    def keep(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        kept["x"] = inputs[0].detach()
        output.register_hook(lambda gradient: kept.update(gradient=gradient))

    layer.register_forward_hook(keep)
    loss = model.loss(*text_batch(_sequences(num_tokens), SEQUENCE))
    (loss * 2.0**log2_scale).backward()
    return kept["x"].flatten(0, 1), kept["gradient"].flatten(0, 1)


@torch.no_grad()
def token_losses(num_tokens: int) -> Tensor:
    """Cross-entropy of each token in nats, of the untrained GPT: (tokens,), fp32."""
    inputs, targets = text_batch(_sequences(num_tokens), SEQUENCE)
    logits = small_gpt()(inputs).flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten(), reduction="none")


def _sequences(num_tokens: int) -> int:
    if num_tokens < 1 or num_tokens % SEQUENCE:
        raise ValueError(f"{num_tokens} tokens: must be a multiple of {SEQUENCE}, a sequence each")
    return num_tokens // SEQUENCE


# --- one technique removed ----------------------------------------------------------------------


def removed(row: str, seed: int, steps: int) -> SchemeRun:
    """Adam on batches of 512 tokens, in one of `ROWS`.

    **Raises** ValueError for another row.
    """
    if row not in ROWS:
        raise ValueError(f"no row {row!r}: choose one of {tuple(ROWS)}")
    scheme, dtype = ROWS[row]
    return train_scheme(
        scheme,
        small_gpt(seed),
        lambda step: text_batch(16, SEQUENCE, seed=seed, step=step),
        steps,
        lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        dtype,
    )


def large_batch(scheme: str, tokens: int, steps: int) -> SchemeRun:
    """Adam on batches of many tokens, in fp16: a GPT of one layer, hidden size 16, 2 heads."""
    torch.manual_seed(0)
    return train_scheme(
        scheme,
        GPT(layers=1, hidden=16, heads=2, sequence=SEQUENCE),
        lambda step: text_batch(_sequences(tokens), SEQUENCE, step=step),
        steps,
        lambda parameters: torch.optim.Adam(parameters, lr=5e-3),
    )


# --- autocast -----------------------------------------------------------------------------------


def autocast_dtypes(
    operations: Mapping[str, Callable[[Tensor], Tensor]], x: Tensor, dtype: torch.dtype
) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """What each operation returns under autocast, given `x` in fp32 and given it in `dtype`."""
    with torch.autocast(x.device.type, dtype=dtype):
        return {
            name: (operation(x).dtype, operation(x.to(dtype)).dtype)
            for name, operation in operations.items()
        }


# --- bytes and seconds of a step ----------------------------------------------------------------


def step_bytes(
    way: str, layers: int, hidden: int, heads: int, sequence: int, batch: int
) -> dict[str, int]:
    """Measured bytes by kind in the second step of a GPT with Adam, in bf16 where `way` says so.

    `way` is one of `pedagogy.costs.precision.PRECISIONS`. Activations are those after forward,
    all else is read after backward; buffers are left out.
    """
    torch.manual_seed(0)
    model = GPT(layers=layers, hidden=hidden, heads=heads, sequence=sequence)
    optimizer = torch.optim.Adam(model.parameters())
    if way == "16-bit with master weights":
        optimizer = MasterWeights(optimizer, torch.bfloat16)
    inputs, targets = text_batch(batch, sequence)

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            return token_loss(model(inputs).float(), targets)

    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    with memory_meter(model, optimizer) as meter:
        error = loss()
        activations = meter.now_by_kind["activations"]
        error.backward()
        held = meter.now_by_kind | {"activations": activations}
    return {kind: num_bytes for kind, num_bytes in held.items() if kind != "buffers"}


def seconds_by_precision(device: str, size: int = 512) -> dict[str, dict[str, float]]:
    """Seconds of a product of two matrices, and of a step of the GPT under autocast, by precision.

    The fastest of three, after one that is not counted. fp32 means no TF32.
    """
    a, b = torch.randn(2, size, size, device=device)
    model = small_gpt().to(device)
    inputs, targets = (ids.to(device) for ids in text_batch(16, SEQUENCE))

    def step(dtype: torch.dtype) -> None:
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = model.loss(inputs, targets)
        loss.backward()

    found: dict[str, dict[str, float]] = {f"product, n = {size}": {}, "step of the GPT": {}}
    product, whole = found.values()
    for name, dtype in DTYPES.items():
        x, y = a.to(dtype), b.to(dtype)
        product[name] = _fastest(lambda x=x, y=y: x @ y, device)
        whole[name] = _fastest(lambda dtype=dtype: step(dtype), device)
    return found


def _fastest(run: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(4):
        start = perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(perf_counter() - start)
    return min(times[1:])
