"""`Private`: a callback that makes what a Lightning Trainer fits private.

The LightningModule, its data and the Trainer stay as they are. The callback stands where the Trainer asks the module
for its optimizer and the data source for its loader, and gives it what `make_private` made of both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from hoarfrost import budget
from hoarfrost.clipping import Clipper
from hoarfrost.epochs import steps_of
from hoarfrost.errors import InvalidValue, MissingExtra, NotPrivate
from hoarfrost.freezing import Freezer
from hoarfrost.gradients import Reduction
from hoarfrost.lightning.batches import Batches, count_steps
from hoarfrost.lightning.configured import follow, parts_of, with_optimizer
from hoarfrost.lightning.settings import length_of, refuse_settings
from hoarfrost.optim.progress import progress_in
from hoarfrost.private import make_private
from hoarfrost.run import Private as Run
from hoarfrost.sampling.source import people_of, poisson_of
from hoarfrost.stages import Earlier

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import CombinedLoader
except ImportError as error:
    raise MissingExtra(
        "hoarfrost.lightning needs Lightning, which is not installed: pip install 'hoarfrost[lightning]'"
    ) from error


class Private(Callback):
    """Trains what `Trainer.fit` is handed with differential privacy.

    Batches become Poisson batches. With ``max_physical_batch`` they come in chunks, each of which is a batch to
    `training_step`; `global_step`, ``max_steps`` and schedulers count steps. The run is as long as the Trainer's
    ``max_epochs`` or ``max_steps`` say, and `estimated_stepping_batches` is its number of steps.

    `training_step` returns the mean loss of its batch, or one loss for each example, a tensor [rows].

    Args:
        part: the name of the module in the LightningModule that `training_step` calls on a batch (``"net"`` for
            ``self.net(x)``); by default the LightningModule itself, if it has a `forward`, or its only child that is
            trained.
        delta, epsilon, noise_multiplier, batch_size, clip, freeze, loss_reduction, max_physical_batch, lengths, views,
            person, per_person, accountant, seed, ledger, run, after, allow_state, cache_frozen: as of
            `hoarfrost.make_private`. Without ``batch_size``, the training loader's is expected.

    Guarantees:
        Those of `hoarfrost.make_private`, for the weights at every step. A checkpoint of the Trainer's holds what was
        spent on its weights; ``fit(ckpt_path=)`` goes on from there, and refuses one that does not. What
        `training_step` logs is computed on private data, and is *not* covered: it is told of once.

    >>> import torch, lightning, hoarfrost.lightning
    >>> class Classifier(lightning.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = nn.Linear(3, 2)
    ...     def training_step(self, batch, number):
    ...         return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> data = torch.utils.data.TensorDataset(torch.randn(200, 3), torch.randint(2, (200,)))
    >>> private = hoarfrost.lightning.Private(epsilon=3.0, delta=1e-4)
    >>> trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[private], logger=False,
    ...     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    >>> trainer.fit(Classifier(), DataLoader(data, batch_size=20))
    >>> trainer.global_step, 2.9 < private.run.epsilon() <= 3.0
    (20, True)
    """

    def __init__(
        self,
        *,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        batch_size: float | None = None,
        clip: Clipper | float = 1.0,
        freeze: Freezer | None = None,
        part: str | None = None,
        loss_reduction: Reduction = "mean",
        max_physical_batch: int | None = None,
        lengths: Any = None,
        views: int = 1,
        person: Any = None,
        per_person: int | None = None,
        accountant: budget.Accountant = "pld",
        seed: int | None = None,
        ledger: budget.Ledger | budget.Allowance | str | Path | None = None,
        run: str | None = None,
        after: Earlier | Sequence[Earlier] | None = None,
        allow_state: Sequence[str] = (),
        cache_frozen: bool | float = False,
    ) -> None:
        self._privacy: dict[str, Any] = {
            "delta": delta, "epsilon": epsilon, "noise_multiplier": noise_multiplier, "batch_size": batch_size,
            "clip": clip, "freeze": freeze, "loss_reduction": loss_reduction, "max_physical_batch": max_physical_batch,
            "lengths": lengths, "views": views, "person": person, "per_person": per_person, "accountant": accountant,
            "seed": seed, "ledger": ledger, "run": run, "after": after, "allow_state": allow_state,
            "cache_frozen": cache_frozen,
        }  # fmt: skip
        self._part = part
        self._run: Run | None = None
        self._batches: Batches | None = None
        self._undo: list[Callable[[], None]] = []
        self._told = False

    @property
    def run(self) -> Run:
        """The private run: what was planned and spent. There is one from the beginning of `fit` on."""
        if self._run is None:
            raise InvalidValue("there is no private run before trainer.fit() has begun")
        return self._run

    def statement(self) -> budget.Statement:
        """The sentence to put beside the model: epsilon, delta, how they were computed, and what was released."""
        return self.run.statement()

    # Hooks that the Trainer calls.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stands between the Trainer and what it asks for its optimizer and its loader."""
        if stage != "fit":
            return
        if self._run is not None:
            raise NotPrivate(
                "fit() with a Private that has had its run: another one would cost privacy that was not planned for. "
                "For a second stage, build a Trainer with Private(..., after=private.run); to go on from a checkpoint, "
                "build module, Private and Trainer as before, and call fit(module, ckpt_path=...)"
            )
        refuse_settings(trainer)
        configure = pl_module.configure_optimizers
        self._replace(pl_module, "configure_optimizers", lambda: self._configure(trainer, pl_module, configure))
        self._replace(pl_module, "log", self._telling(trainer, pl_module.log))
        backward = pl_module.backward
        self._replace(pl_module, "backward", lambda loss, *others, **more: self._backward(backward, loss, others, more))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Module and Trainer are as they were; the model stays private."""
        while self._undo:
            self._undo.pop()()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A freezer that wants to know something of the data asks now, after what a checkpoint knows."""
        self.run.prepare()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The loop has come to the next chunk of those that it has fetched."""
        assert self._batches is not None
        self._batches.come_to_next()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs epsilon."""
        pl_module.log("epsilon", self.run.epsilon())

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuses to save what is not fit for it. What was spent is in the optimizer's state."""
        if self._run is not None:
            self._run.check_savable()
            if "loops" in checkpoint:
                count_steps(checkpoint["loops"]["fit_loop"])

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuses weights whose cost is unknown, where training goes on from them."""
        states = checkpoint.get("optimizer_states") or []
        if trainer.state.fn == "fit" and not any(progress_in(state) for state in states):
            raise NotPrivate(
                "this checkpoint says nothing of what was spent on its weights, which cannot be counted then. Go on "
                "from one that was saved with hoarfrost.lightning.Private and the optimizer's state "
                "(save_weights_only=False)"
            )

    # The inside.

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        """Until `teardown`."""
        before = owner.__dict__.get(name)

        def undo() -> None:
            if before is None:
                del owner.__dict__[name]
            else:
                setattr(owner, name, before)

        self._undo.append(undo)
        setattr(owner, name, value)

    def _configure(self, trainer: Trainer, module: LightningModule, configure: Callable[[], Any]) -> Any:
        """What the module's own `configure_optimizers` returns, with the private optimizer in it."""
        loop = trainer.fit_loop
        data = loop._data_source.dataloader()
        if not isinstance(data, DataLoader):
            raise NotPrivate(
                f"Private takes one DataLoader to train on, and got {type(data).__name__}: a data set behind it is "
                "what epsilon is about"
            )
        length = length_of(trainer)
        plan = self._plan(data, length)
        if plan is not None:
            self._replace(loop.epoch_loop, "max_steps", plan)
        # What estimated_stepping_batches looks at: a loader without a length, so that it says max_steps.
        loop._combined_loader = CombinedLoader([])
        try:
            found = configure()
        finally:
            loop._combined_loader = None
        optimizers, schedulers = parts_of(found)
        if len(optimizers) != 1:
            raise NotPrivate(
                f"configure_optimizers returns {len(optimizers)} optimizers, and a private run has one step for each "
                "batch. Return one, with parameter groups"
            )
        self._run = make_private(self._model(module), optimizers[0], data, **length, **self._privacy)
        self._batches = Batches(self._run, trainer)
        loop._data_source.instance = self._batches
        if self._privacy["max_physical_batch"] is not None:
            batches = self._batches
            self._replace(loop.epoch_loop, "_should_accumulate", lambda: not batches.whole)
        for scheduler in schedulers:
            follow(scheduler, self._run.optimizer)
        return with_optimizer(found, self._run.optimizer)

    def _plan(self, data: DataLoader[Any], length: dict[str, Any]) -> int | None:
        """How many steps the run will have; `make_private` says the same."""
        people = people_of(data, self._privacy["person"], self._privacy["per_person"])
        rate = poisson_of(data, self._privacy["batch_size"], None, people).sample_rate
        return steps_of(length.get("epochs"), length.get("steps"), rate)

    def _model(self, module: LightningModule) -> nn.Module:
        whole: nn.Module = module
        if self._part is not None:
            return whole.get_submodule(self._part)
        if type(module).forward is not LightningModule.forward:
            return whole
        trained = [child for child in whole.children() if any(p.requires_grad for p in child.parameters())]
        if len(trained) == 1 and not any(True for _ in whole.parameters(recurse=False)):
            return trained[0]
        raise NotPrivate(
            f"{type(module).__name__} has no forward, and several modules that are trained: an example's gradient is "
            "clipped over all of them. Give it a forward that calls them, and let training_step call self(x); or say "
            'which module training_step calls, Private(..., part="net")'
        )

    def _backward(self, plain: Callable[..., None], loss: Tensor, others: Any, more: Any) -> None:
        if loss.dim() == 1:  # one loss for each example
            self.run.optimizer.backward(loss)
        else:
            plain(loss, *others, **more)

    def _telling(self, trainer: Trainer, log: Callable[..., None]) -> Callable[..., None]:
        """The module's `log`, which says once that what `training_step` logs is private."""

        def telling(name: str, value: Any, *others: Any, **more: Any) -> None:
            if trainer.training and not self._told and name != "epsilon":
                self._told = True
                warnings.warn(
                    f"self.log({name!r}) in training: what is computed on private data without noise is not covered by "
                    "epsilon, and must not be released, as logs, progress bars and names of checkpoints are. Log what "
                    "validation_step computes on other data",
                    stacklevel=2,
                )
            log(name, value, *others, **more)

        return telling
