"""What a model is made of: it stays as it was made private, or is refused by name.

Rules stand in front of modules, and the optimizer holds parameters. Another object in the place of either would be
trained on nothing, or on something else than its gradient, without a word.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from hoarfrost.errors import NotPrivate

# Known by name, so that they need not be imported.
IN_SEVERAL_PROCESSES = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def refuse_unfit(model: nn.Module) -> None:
    """Refuses wrappers and layers that cannot be made private as they are, each with what to write instead."""
    for name, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__} & IN_SEVERAL_PROCESSES
        if kinds:
            raise in_several_processes(f"{name or 'the model'} is in {_wrapper(kinds.pop())}")
        if isinstance(module, torch.jit.ScriptModule):
            raise NotPrivate(
                f"{name or 'the model'} is in TorchScript, which computes past the layers, where gradients cannot be "
                "attributed to individual examples. Make the plain module private, and script it after the training"
            )
        if any(type(hook).__name__ == "SpectralNorm" for hook in module._forward_pre_hooks.values()):
            raise NotPrivate(
                f"{name or 'the model'} has torch.nn.utils.spectral_norm, which computes its weight outside of the "
                "layer, where gradients cannot be attributed to individual examples. Use "
                "torch.nn.utils.parametrizations.spectral_norm."
            )
    unreal = next((name for name, p in model.named_parameters() if p.is_complex() and p.requires_grad), None)
    if unreal is not None:
        raise NotPrivate(
            f"the parameter {unreal} has complex numbers, whose noise and norms are not defined here. Keep them as "
            "pairs of real numbers, nn.Parameter(torch.view_as_real(weight)), and compute with "
            "torch.view_as_complex(parameter)"
        )
    lazy = next((name for name, p in model.named_parameters() if is_lazy(p)), None)
    if lazy is not None:
        raise NotPrivate(
            f"the parameter {lazy} has no shape yet (LazyLinear and the like): run the model once on a made-up "
            "example, model(torch.zeros(1, ...)), and build the optimizer after that"
        )


def in_several_processes(what: str) -> NotPrivate:
    """The error for a model that is trained in several processes."""
    return NotPrivate(
        f"{what}, and training in several processes is not supported: each would draw batches and noise of its own, "
        "and their weights would drift apart. Hand make_private the model itself, and train it in one process"
    )


def tell_of_other_processes(asks: str | None) -> None:
    """Says so where several processes work together, of which each would train for itself.

    Args:
        asks: a freezer that looks at the data, in words: each process would choose for itself, which is refused.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if torch.distributed.get_world_size() > 1:
        if asks is not None:
            raise NotPrivate(
                f"torch.distributed has several processes at work, and in each of them {asks} would look at the data "
                "and choose for itself: they would train different parts of the model. Train in one process; or choose "
                "in one (hoarfrost select, or Selection.save) and use Frost.from_file in all. Runs that are meant to "
                "be separate need a common ledger="
            )
        warnings.warn(
            "torch.distributed has several processes at work, and a private run is one process's: each that calls "
            "make_private draws batches and noise of its own, and its epsilon counts its own steps alone. Train in one "
            "process, and do not average weights over them. Runs that are meant to be separate need a common ledger=, "
            "which adds them up",
            stacklevel=3,
        )


class Structure:
    """The modules and parameters of ``model`` as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._places: list[tuple[nn.Module, str, Any]] = []  # a module, the name of a parameter in it, and that
        self._children: list[tuple[nn.Module, str, nn.Module | None]] = []
        for module in model.modules():
            self._places += [(module, name, p) for name, p in module._parameters.items()]
            self._children += [(module, name, child) for name, child in module._modules.items()]

    def refuse_changes(self) -> None:
        """Refuses a model in which another object stands where there was a parameter or a module."""
        if getattr(DistributedDataParallel, "_active_ddp_module", None) is not None:
            raise in_several_processes("the model is in DistributedDataParallel")
        for module, name, child in self._children:
            if module._modules.get(name) is not child:
                raise NotPrivate(
                    f"{self._path(module, name)} is another module than at make_private: it would not be trained. "
                    "Change the model first, build the optimizer, and make both private then"
                )
        for module, name, p in self._places:
            if module._parameters.get(name) is not p:
                raise self._replaced(module, name)

    def _replaced(self, module: nn.Module, name: str) -> NotPrivate:
        now, path = module._parameters.get(name), self._path(module, name)
        sharded = {kind.__name__ for m in self.model.modules() for kind in type(m).__mro__} & IN_SEVERAL_PROCESSES
        if not sharded and getattr(
            module, "_is_fsdp_managed_module", False
        ):  # the wrapper may be around the model, and not in it
            sharded.add("FullyShardedDataParallel")
        if sharded:
            return in_several_processes(f"the model is in {_wrapper(sharded.pop())}")
        if now is not None and not isinstance(now, nn.Parameter):
            return NotPrivate(
                f"the model runs with another tensor in the place of its parameter {path}, as "
                "torch.func.functional_call does: the gradient there is not that of the parameter that is trained. "
                "Call the model itself, or put what changes its weights into a module (torch.nn.utils.parametrize)"
            )
        if now is None:
            return NotPrivate(
                f"the parameter {path} was there at make_private and is gone, as after torch.nn.utils.prune or a "
                "parametrization: what stands in its place would not be trained. Change the model first, build the "
                "optimizer, and make both private then"
            )
        return NotPrivate(
            f"the parameter {path} is another object than at make_private, as after load_state_dict(assign=True): the "
            "optimizer would go on with the old one, and nothing would be trained. Use load_state_dict without "
            "assign=, or load before the optimizer is built and make_private is called"
        )

    def _path(self, module: nn.Module, name: str) -> str:
        prefix = next((path for path, each in self.model.named_modules() if each is module), "")
        return f"{prefix}.{name}" if prefix else name


def _wrapper(kind: str) -> str:
    return "fully_shard" if kind == "FSDPModule" else kind


def set_compilation_aside(model: nn.Module) -> dict[nn.Module, Any]:
    """Modules that torch.compile has wrapped or marked, which run without it from now on, and their marks; says so."""
    compiled = {
        module: module._compiled_call_impl
        for module in model.modules()
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
    }
    for module in compiled:
        module._compiled_call_impl = None
    if compiled:
        warnings.warn(
            "torch.compile is set aside: gradients of individual examples are taken as the model runs, which a "
            "compiled model does not show. It is trained without it, with the same result",
            stacklevel=6,
        )
    return compiled
