"""A module's dict of values, where the values lie in host memory.

Why it exists
-------------
`state_dict` reads parameters by name, and an evicted one cannot be read. What it should give is
what the host has: the truth, in fp32 where the device computes in 16 bits. So for the moment of the
call each name stands for the host's parameter, and afterwards for the device's again; loading works
the same way, into host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from pedagogy.offload.host_copy import HostCopy


def values_by_name(
    module: nn.Module, copies: Mapping[nn.Parameter, HostCopy]
) -> list[RemovableHandle]:
    """The module's dicts of values are read from, and loaded into, host memory from now on."""
    places = [
        (owner._parameters, name, p)
        for owner in module.modules()
        for name, p in owner._parameters.items()
        if p in copies
    ]

    def show_hosts(*_: Any) -> None:
        for parameters, name, p in places:
            copies[p].settle()
            parameters[name] = copies[p].host

    @torch.no_grad()
    def show_devices(*_: Any) -> None:
        for parameters, name, p in places:
            host, parameters[name] = parameters[name], p
            if host is not copies[p].host:  # by load_state_dict(assign=True)
                copies[p].host.copy_(host)

    return [
        module.register_state_dict_pre_hook(show_hosts),
        module.register_state_dict_post_hook(show_devices),
        module.register_load_state_dict_pre_hook(show_hosts),
        module.register_load_state_dict_post_hook(show_devices),
    ]
