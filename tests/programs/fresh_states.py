"""Programs that fresh eyes wrote: what is saved by other ways than parameters and buffers, and hooks on parameters."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tests.programs.corpus import Rows, refused, right, wrong
from tests.programs.examples import vectors
from tests.programs.loops import fit
from tests.programs.running import MakePrivate


class Remembering(nn.Module):
    """Keeps the mean of its inputs for later, in torch's own way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(6, 3), torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        output: Tensor = self.layer(x)
        return output

    def get_extra_state(self) -> Tensor:
        return self.mean

    def set_extra_state(self, state: Any) -> None:
        self.mean = state


@wrong(vectors, refused("the extra state _extra_state changes"))
def a_running_mean_as_extra_state(rows: Rows, make_private: MakePrivate) -> None:
    fit(Remembering(), rows, make_private)


class Counting(nn.Module):
    """Writes what it has counted into the state_dict by itself, as persistent metrics do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.total = nn.Linear(6, 3), 0.0

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "total": self.total}


@wrong(vectors, refused("the extra state total changes"))
def a_metric_that_is_saved_with_the_model(rows: Rows, make_private: MakePrivate) -> None:
    model = Counting()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        model.total += float(x.mean())
    torch.save({"model": model.state_dict(), "optimizer": private.optimizer.state_dict()}, io.BytesIO())


class Versioned(nn.Linear):
    """Extra state that does not change."""

    def get_extra_state(self) -> dict[str, Any]:
        return {"version": 3, "scale": torch.ones(2)}

    def set_extra_state(self, state: Any) -> None:
        pass


@right(vectors)
def extra_state_that_stays(rows: Rows, make_private: MakePrivate) -> Any:
    return fit(nn.Sequential(Versioned(6, 4), nn.Tanh(), nn.Linear(4, 3)), rows, make_private)


class Tempered(nn.Module):
    """A classifier with a temperature that is set after training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x) / self.temperature
        return output


@wrong(vectors, refused("the buffer temperature changes"))
def a_buffer_that_is_set_from_training_data_after_the_last_step(rows: Rows, make_private: MakePrivate) -> None:
    run = fit(Tempered(), rows, make_private)
    with torch.no_grad():
        run.model.temperature.copy_(torch.stack([x for x, _ in rows]).std())
    torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, io.BytesIO())


@wrong(vectors, refused("layer.weight has a hook of its own"))
def a_hook_that_masks_the_gradient_of_a_parameter(rows: Rows, make_private: MakePrivate) -> None:
    model = Tempered()
    model.layer.weight.register_hook(lambda gradient: gradient * (torch.arange(3) > 0)[:, None])
    fit(model, rows, make_private)


@wrong(vectors, refused("layer.weight has a hook of its own"))
def a_hook_after_a_gradient_is_accumulated(rows: Rows, make_private: MakePrivate) -> None:
    model = Tempered()
    model.layer.weight.register_post_accumulate_grad_hook(lambda p: p.grad.zero_())
    fit(model, rows, make_private)


class Ensemble(nn.Module):
    """Members whose weights are stacked, as torch.func's guide to ensembles has it."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        named = [dict(member.named_parameters()) for member in self.members]
        stacked = {name: torch.stack([each[name] for each in named]) for name in named[0]}
        outputs: Tensor = vmap(lambda p, x: functional_call(self.members[0], p, (x,)), (0, None))(stacked, x)
        return outputs.mean(0)


@wrong(vectors, refused("inside of a transform of torch.func"))
def an_ensemble_by_torch_func(rows: Rows, make_private: MakePrivate) -> None:
    fit(Ensemble(), rows, make_private)


class TwoTasks(nn.Module):
    """Learned weights of two losses, as parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.log_variances = nn.Linear(6, 3), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.log_variances


@wrong(vectors, refused("with a row for each example"))
def learned_weights_of_losses_without_a_row_for_each_example(rows: Rows, make_private: MakePrivate) -> None:
    model = TwoTasks()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in private.loader:
        output, weights = private.model(x)
        weights = weights.expand(len(x), 2)
        losses = F.cross_entropy(output, y, reduction="none")
        private.optimizer.backward((-weights[:, 0]).exp() * losses + weights[:, 0])
        private.optimizer.step()
