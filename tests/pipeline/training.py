"""Training on a pipeline, written down in full: what the equality tests of this folder share.

Each rank builds the whole model and trains its stages alone. `train` returns the History of the
whole model: gradients and weights of a parameter come from the rank that holds it, and where
several hold a copy (a tied weight across stages), each rank reports its own.
"""

import random
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from pedagogy.pipeline import (
    Action,
    Layout,
    TiedWeight,
    gpt_layers,
    run_schedule,
    simulate,
    split_batch,
    split_layers,
)
from pedagogy.workloads import GPT
from tests.equality import (
    History,
    Problem,
    adamw,
    awkward_batch,
    float_batch,
    gpt_batch,
    momentum,
    token_loss,
)


def layers_of(model):
    """The model as a list of layers that share its parameters."""
    return gpt_layers(model) if isinstance(model, GPT) else list(model.layers)


def cut(num_layers, num_stages, seed=0):
    """Boundaries of uneven stages; another seed cuts elsewhere."""
    inner = random.Random(seed).sample(range(1, num_layers), num_stages - 1)
    edges = [0, *sorted(inner), num_layers]
    return list(pairwise(edges))


def own_stages(group, layout, model, seed=0):
    """This rank's stages by number, and the tied weights that lie on several ranks."""
    layers = layers_of(model)
    modules = split_layers(layers, cut(len(layers), layout.num_stages, seed))
    home = [layout.rank_of(stage, 0) for stage in range(layout.num_stages)]
    holders = {}  # by parameter: the ranks that use it
    for rank, module in zip(home, modules, strict=True):
        for parameter in module.parameters():
            holders.setdefault(parameter, set()).add(rank)
    tied = [
        TiedWeight(group, sorted(ranks), parameter if group.rank in ranks else None)
        for parameter, ranks in holders.items()
        if len(ranks) > 1
    ]
    return {s: modules[s] for s, rank in enumerate(home) if rank == group.rank}, tied


def train(group, problem, steps, schedule, seed=0, model=None):
    """Train with `schedule` on uneven stages; the History of the whole model, on each rank."""
    torch.set_num_threads(1)  # tiny tensors, shared cores
    layout = Layout(schedule)
    model = model or problem.model()
    if group.rank > 0:  # as if each rank had drawn its copy of a tied embedding itself
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight)
    stages, tied = own_stages(group, layout, model, seed)
    held = nn.ModuleList(stages.values())
    optimizer, history = problem.make_optimizer(model.parameters()), History()
    torch.manual_seed(100 + group.rank)
    for step in range(steps):
        batch, outputs = problem.batch(step), {}
        inputs, targets = (split_batch(part, layout.num_microbatches) for part in batch)

        def loss(output, target, targets=targets, outputs=outputs):
            outputs[next(k for k, one in enumerate(targets) if one is target)] = output
            return problem.loss(output, target)

        run_schedule(group, schedule, stages, inputs, targets, loss)
        for weight in tied:
            weight.sum_gradients()
        optimizer.step()
        whole = [outputs[k] for k in sorted(outputs)] or [torch.empty(0)]
        history.note(torch.cat(whole), model)
        optimizer.zero_grad()
    return gather(group, history, {id(p) for p in held.parameters()}, model)


def gather(group, history, mine, model):
    """The History of the whole model: what is not `mine` comes from the ranks that hold it.

    The outputs are those of the last stage, and empty on all ranks but the one that holds it.
    """
    names = {name for name, parameter in model.named_parameters() if id(parameter) in mine}

    def mine_of(steps):
        return [{name: at[name] for name in names} for at in steps]

    own = History(history.outputs, mine_of(history.gradients), mine_of(history.weights))
    parts = [own]
    if group.size > 1:
        parts = [None] * group.size
        dist.all_gather_object(parts, own, group=group.process_group)
    for part in [*parts, own]:
        for step in range(len(history.outputs)):
            history.gradients[step] |= part.gradients[step]
            history.weights[step] |= part.weights[step]
    return history


def one_by_one(problem, steps, schedule, seed=0, model=None):
    """One process that runs the schedule's forwards in their order, and one backward of all.

    What depends on the micro-batches (BatchNorm) and on random numbers (dropout: each rank has a
    generator of its own) is as in the pipeline; the rest is plain autograd.
    """
    layout, model = Layout(schedule), model or problem.model()
    layers, start = layers_of(model), simulate(schedule).start
    modules = split_layers(layers, cut(len(layers), layout.num_stages, seed))
    forwards = sorted((action for action in start if action.kind == "F"), key=start.get)
    optimizer, history = problem.make_optimizer(model.parameters()), History()
    state = {rank: torch.manual_seed(100 + rank).get_state() for rank in range(layout.num_ranks)}
    for step in range(steps):
        batch = problem.batch(step)
        inputs = split_batch(batch[0], layout.num_microbatches)
        x = {(-1, k): part for k, part in enumerate(inputs)}
        for _, stage, k in forwards:
            rank = layout.rank_of(stage, k)
            torch.set_rng_state(state[rank])
            x[stage, k] = modules[stage](x[stage - 1, k])
            state[rank] = torch.get_rng_state()
        outputs = [x[layout.num_stages - 1, k] for k in range(len(inputs))]
        problem.loss(torch.cat(outputs), batch[1]).backward()
        optimizer.step()
        history.note(torch.cat(outputs), model)
        optimizer.zero_grad()
    return history


def train_all(group, problem, steps, schedules, seed=0):
    """Each schedule's History, by name, in one launch."""
    return {name: train(group, problem, steps, s, seed) for name, s in schedules.items()}


# --- problems ------------------------------------------------------------------------------------


def typed(*ranks):
    """A schedule typed by hand, a string for each rank: "F0@0 F1@0 B0@0"."""
    return [
        [Action(one[0], int(one.split("@")[1]), int(one[1:].split("@")[0])) for one in row.split()]
        for row in ranks
    ]


class Scale(nn.Module):
    """A parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        """**Shapes** any."""
        return x * self.factor


class Chain(nn.Module):
    """Layers in a row; `unused` belongs to no stage."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.unused = nn.Linear(3, 11)

    def forward(self, x):
        """One layer after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


def awkward_chain():
    """14 layers of odd sizes: a frozen one, two with one weight, a scalar; any cut is uneven."""
    once, again = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
    again.weight = once.weight
    return Chain(
        nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 5).requires_grad_(False), nn.Tanh(), once,
        nn.Tanh(), again, nn.LayerNorm(5), nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 5), nn.Tanh(),
        Scale(), nn.Linear(5, 3),
    )  # fmt: skip


def frozen_start():
    """The first half is frozen: whole stages have nothing to train."""
    model = awkward_chain()
    for layer in model.layers[:5]:
        layer.requires_grad_(False)
    return model


def even_chain(*between):
    """Blocks of one size, so that stages can be confused and messages mixed up."""
    blocks = [m for _ in range(6) for m in (nn.Linear(5, 5), *(make() for make in between))]
    return Chain(nn.Linear(7, 5), nn.Tanh(), *blocks, nn.Linear(5, 3))


def dropout_chain():
    """Dropout in every stage."""
    return even_chain(nn.Tanh, lambda: nn.Dropout(0.4))


def batch_norm_chain():
    """BatchNorm in every stage."""
    return even_chain(lambda: nn.BatchNorm1d(5), nn.Tanh)


def deep_gpt():
    """12 layers with embedding and head, tied."""
    return GPT(vocabulary=256, layers=10, hidden=6, heads=2, sequence=7)


def problem(name, make_model, make_optimizer=adamw, batch=awkward_batch):
    """A Problem of a chain."""
    return Problem(name, make_model, make_optimizer, batch, functional.cross_entropy)


CHAIN = problem("awkward chain", awkward_chain)
CHAIN_FLOAT32 = Problem(
    "awkward chain in float32", awkward_chain, momentum, float_batch,
    functional.cross_entropy, torch.float32,
)  # fmt: skip
FROZEN = problem("frozen start", frozen_start, momentum)
EVEN = problem("even chain", lambda: even_chain(nn.Tanh), momentum)
DROPOUT = problem("dropout", dropout_chain, momentum)
BATCH_NORM = problem("batch norm", batch_norm_chain, momentum)
DEEP_GPT = Problem("deep tied GPT", deep_gpt, momentum, gpt_batch, token_loss)
