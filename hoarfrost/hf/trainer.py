"""`PrivateTrainer`: a `transformers.Trainer` whose step is private."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hoarfrost import budget
from hoarfrost.clipping import Clipper
from hoarfrost.errors import InvalidValue, MissingExtra, NotPrivate
from hoarfrost.freezing import Freezer
from hoarfrost.hf.arguments import refuse_arguments
from hoarfrost.hf.lengths import lengths_for
from hoarfrost.hf.losses import ModelLosses, refuse_other_shapes
from hoarfrost.hf.record import TrainingRecord
from hoarfrost.hf.steps import Part, Steps
from hoarfrost.optim.progress import progress_in
from hoarfrost.private import make_private
from hoarfrost.run import Private
from hoarfrost.sampling.overlap import shares_data
from hoarfrost.stages import Earlier

try:
    import accelerate  # noqa: F401 - which Trainer needs
    from transformers import Trainer, TrainerCallback, TrainingArguments
except ImportError as error:
    raise MissingExtra(
        "PrivateTrainer needs transformers and accelerate, which are not installed: pip install 'hoarfrost[hf]'"
    ) from error

# What a Trainer logs of the training data, and no epsilon covers.
PRIVATE = frozenset({"loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen"})


class PrivateTrainer(Trainer):
    """A `transformers.Trainer` that trains with differential privacy.

    Batches are Poisson samples. ``per_device_train_batch_size * gradient_accumulation_steps`` examples are expected in
    a step, and the model runs on at most ``per_device_train_batch_size`` of them at a time: `global_step`, the learning
    rate, ``max_steps``, ``logging_steps`` and the like count real steps. The run takes ``max_steps`` of them, or
    ``num_train_epochs`` times N over the expected batch.

    The loss is one for each example: that of the model's kind (`hoarfrost.hf.losses`), or what ``compute_loss_func`` or
    an overridden `compute_loss` returns, a tensor [rows].

    Args:
        model, args, others, settings: as of `transformers.Trainer`. Arguments that a private run cannot follow are
            refused by name (`hoarfrost.hf.arguments`).
        delta, epsilon, noise_multiplier, clip, freeze, views, person, per_person, accountant, seed, ledger, run, after,
            allow_state, cache_frozen: as of `hoarfrost.make_private`.
        lengths: as there, of the rows of ``train_dataset`` with all their columns: chunks then hold examples of like
            length. `group_by_length` of TrainingArguments (since transformers 5: ``train_sampling_strategy=
            "group_by_length"``) asks for the same, with the lengths that a plain Trainer finds.
        training_record: write the training loss to ``not-private/training.jsonl`` below the output folder, whenever
            something is logged. It is computed on private data without noise, and must not be released.

    Guarantees:
        Those of `hoarfrost.make_private`, for the weights at every step. Of the training data, nothing but what follows
        from the private steps is logged, or saved: losses and the like stay out of logs, callbacks, `state` and
        checkpoints. A checkpoint holds what was spent on its weights, and `train(resume_from_checkpoint=)` refuses one
        that does not. Evaluation is not private: it must be on other data than that which is protected.

    >>> import tempfile
    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> model = BertForSequenceClassification(BertConfig(
    ...     vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    >>> examples = [{"input_ids": [1, 2, 3], "labels": n % 2} for n in range(200)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     args = TrainingArguments(folder, per_device_train_batch_size=10, num_train_epochs=1, logging_steps=20,
    ...                              report_to="none", disable_tqdm=True, use_cpu=True)
    ...     trainer = PrivateTrainer(model, args, train_dataset=examples, epsilon=3.0, delta=1e-4)
    ...     trained = trainer.train()
    {'learning_rate': ..., 'epsilon': ..., 'delta': ..., 'epoch': ...}
    {'train_runtime': ...}
    >>> 2.9 < trainer.private.epsilon() <= 3.0
    True
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *others: Any,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        clip: Clipper | float = 1.0,
        freeze: Freezer | None = None,
        views: int = 1,
        person: Any = None,
        per_person: int | None = None,
        accountant: budget.Accountant = "pld",
        seed: int | None = None,
        ledger: budget.Ledger | budget.Allowance | str | Path | None = None,
        run: str | None = None,
        after: Earlier | Sequence[Earlier] | None = None,
        allow_state: Sequence[str] = (),
        lengths: Any = None,
        cache_frozen: bool | float = False,
        training_record: bool = False,
        **settings: Any,
    ) -> None:
        _refuse_said_elsewhere(settings)
        if args is not None:
            refuse_arguments(args)
        self._privacy: dict[str, Any] = {
            "delta": delta, "epsilon": epsilon, "noise_multiplier": noise_multiplier, "clip": clip, "freeze": freeze,
            "views": views, "person": person, "per_person": per_person, "accountant": accountant, "seed": seed,
            "ledger": ledger, "run": run, "after": after, "allow_state": allow_state,
            "cache_frozen": cache_frozen,
        }  # fmt: skip
        self._lengths = lengths
        self._run: Private | None = None
        self._losses: ModelLosses | None = None
        self._record: TrainingRecord | None = None
        super().__init__(model, args, *others, **settings)
        refuse_arguments(self.args)  # Trainer's own, and what the accelerator has set
        self.callback_handler.callbacks.insert(0, _Before(self))
        if training_record:
            if self.args.push_to_hub:
                raise NotPrivate(
                    "training_record=True writes what is not private below the output folder, which push_to_hub=True "
                    "uploads. Leave out one of them"
                )
            self._record = TrainingRecord(Path(self.args.output_dir))

    # What the run is.

    @property
    def private(self) -> Private:
        """The private run: what was planned and spent. There is one from the beginning of `train` on."""
        if self._run is None:
            raise InvalidValue("there is no private run before trainer.train() has begun")
        return self._run

    def statement(self) -> budget.Statement:
        """The sentence to put beside the model: epsilon, delta, how they were computed, and what was released."""
        return self.private.statement()

    # From here on, methods of Trainer.

    def train(self, resume_from_checkpoint: str | bool | None = None, *others: Any, **settings: Any) -> Any:
        """Trains, as `Trainer.train` does; the training loss that it returns is no number, since it is private."""
        if self._run is not None and self._run.steps_taken and not resume_from_checkpoint:
            raise NotPrivate(
                "train() was called before: a second run from here would cost privacy that was not planned for. To go "
                "on from a checkpoint, call train(resume_from_checkpoint=True); for a second stage with steps and an "
                "epsilon of its own, build a PrivateTrainer with after=trainer.private"
            )
        trained = super().train(resume_from_checkpoint, *others, **settings)
        return trained._replace(training_loss=math.nan)

    def hyperparameter_search(self, *others: Any, **settings: Any) -> Any:
        """Refused."""
        raise NotPrivate(
            "every trial of hyperparameter_search is a run of its own on the private data, and what they all cost adds "
            "up. Build a PrivateTrainer for each, with one ledger= for all of them, or search on public data"
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The steps of the private run, which begins here."""
        if self._run is None or self._run.model is not self.model:
            self._run = self._make_private()
            self.optimizer = self._run.optimizer
        steps = self._run.plan.steps
        assert steps is not None
        epochs = self.args.num_train_epochs if self.args.max_steps <= 0 else steps * self._run.sample_rate
        return Steps(self._run.loader, math.ceil(steps / epochs), self.args.gradient_accumulation_steps).loader()

    def set_initial_training_values(self, *others: Any, **settings: Any) -> Any:
        """As of Trainer, with the plan's number of steps, which need not be one of whole epochs."""
        _, per_epoch, *rest, _ = super().set_initial_training_values(*others, **settings)
        steps = self.private.plan.steps
        assert steps is not None
        return math.ceil(steps / per_epoch), per_epoch, *rest, steps

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """N, the number of examples that are protected."""
        if isinstance(dataloader.dataset, Steps):
            return len(self.private.loader.dataset)
        return int(super().num_examples(dataloader))

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward passes for all chunks of a part of a Poisson batch. What it returns is no loss."""
        assert isinstance(inputs, Part)
        model.train()
        for chunk in inputs.chunks():
            prepared = self._prepare_inputs(chunk)
            with self.compute_loss_context_manager():
                losses = self.compute_loss(model, prepared)
            by = "compute_loss_func" if self.compute_loss_func is not None else f"{type(self).__name__}.compute_loss"
            losses = refuse_other_shapes(losses, by)
            self.private.optimizer.backward(losses)
            if self._record is not None:
                self._record.add(losses)
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return torch.zeros((), device=self.args.device)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """One loss for each example where gradients are taken; in evaluation, as of Trainer."""
        if not torch.is_grad_enabled():
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.compute_loss_func is not None:
            rest = {name: value for name, value in inputs.items() if name != "labels"}
            outputs = model(**rest)
            losses = self.compute_loss_func(outputs, inputs.get("labels"), num_items_in_batch=None)
        else:
            if self._losses is None:
                self._losses = ModelLosses(self.model, self.args.label_smoothing_factor)
            losses, outputs = self._losses(model, inputs)
        return (losses, outputs) if return_outputs else losses

    def log(self, logs: dict[str, float], *others: Any) -> None:
        """As of Trainer, without what is private, and with what was spent."""
        if self._run is not None and not PRIVATE.isdisjoint(logs):  # Trainer's own lines about the training
            for name in PRIVATE:
                logs.pop(name, None)
            logs |= {"epsilon": self._run.epsilon(), "delta": self._run.delta}
            if self._record is not None:
                self._record.write(self.state.global_step)
        super().log(logs, *others)

    def evaluate(self, eval_dataset: Any = None, *others: Any, **settings: Any) -> Any:
        """As of Trainer, on other data than the training data."""
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        for data in chosen.values() if isinstance(chosen, Mapping) else [chosen]:
            if hasattr(data, "__len__") and not isinstance(data, str) and shares_data(data, self.train_dataset):
                raise NotPrivate(
                    "evaluate() on the training data would log what no epsilon covers. Evaluate on other data; what "
                    "trainer.predict(train_dataset) returns is not logged, and must not be released"
                )
        return super().evaluate(eval_dataset, *others, **settings)

    # Checkpoints.

    def _save_checkpoint(self, *others: Any, **settings: Any) -> None:
        self.private.check_savable()
        super()._save_checkpoint(*others, **settings)

    def _save(self, output_dir: str | None = None, *others: Any, **settings: Any) -> None:
        super()._save(output_dir, *others, **settings)
        if self._run is not None:
            folder = Path(self.args.output_dir if output_dir is None else output_dir)
            (folder / "budget.txt").write_text(f"{self.statement()}\n", "utf-8")

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves none: how many random numbers dropout has drawn tells how long the examples of the batches were."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Goes on from what a checkpoint's weights have cost; the optimizer's state has it (`optim.progress`)."""
        if checkpoint is None:
            return
        files = [Path(checkpoint, name) for name in ("optimizer.pt", "scheduler.pt")]
        if not all(file.is_file() for file in files):
            raise NotPrivate(f"{checkpoint} lacks optimizer.pt or scheduler.pt: {_UNKNOWN}")
        if progress_in(torch.load(files[0], map_location="cpu", weights_only=True, mmap=True)) is None:
            raise NotPrivate(f"{checkpoint} was not saved by a PrivateTrainer: {_UNKNOWN}")
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.private.steps is not None:  # fewer than were planned, where a crash has lost some
            self.state.max_steps = min(self.state.max_steps, self.private.steps)

    # The inside.

    def _make_private(self) -> Private:
        args = self.args
        refuse_arguments(args)
        if self.train_dataset is None:
            raise InvalidValue("PrivateTrainer: training requires a train_dataset")
        length = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
        data = self._plain_loader()
        lengths = lengths_for(args, self.train_dataset, getattr(self, "processing_class", None), self._lengths)
        run = make_private(
            self.model, self.create_optimizer(), data, max_physical_batch=data.batch_size, lengths=lengths,
            batch_size=args.train_batch_size * args.gradient_accumulation_steps, **length, **self._privacy,
        )  # fmt: skip
        run.loss_of_one = self._loss_of_one
        return run

    def _loss_of_one(self, model: nn.Module, batch: Any) -> Tensor:
        """What a freezer differentiates that looks at single examples: the loss that is trained."""
        with self.compute_loss_context_manager():
            losses: Tensor = self.compute_loss(model, self._prepare_inputs(batch))
        return losses.sum()

    def _plain_loader(self) -> DataLoader[Any]:
        """The training data as Trainer collates it, without the columns that the model does not know."""
        args, data, collate = self.args, self.train_dataset, self.data_collator
        if hasattr(data, "column_names"):  # one of `datasets`
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        with_workers: dict[str, Any] = {}
        if args.dataloader_num_workers > 0:
            with_workers["prefetch_factor"] = args.dataloader_prefetch_factor
            with_workers["persistent_workers"] = args.dataloader_persistent_workers
            with_workers["multiprocessing_context"] = getattr(args, "dataloader_multiprocessing_context", None)
        return DataLoader(
            data, batch_size=args.train_batch_size, collate_fn=collate, num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(), **with_workers,
        )  # fmt: skip


class _Before(TrainerCallback):
    """Before the loop, and after a checkpoint is loaded: a freezer asks what it wants to know of the data."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *others: Any, **settings: Any) -> None:
        self._trainer.private.prepare()


_UNKNOWN = (
    "what was spent on its weights is not known, and cannot be counted. Go on from a checkpoint that PrivateTrainer "
    "saved; weights that were trained without private data are loaded with from_pretrained"
)


def _refuse_said_elsewhere(settings: Mapping[str, Any]) -> None:
    """What `make_private` is told, and a Trainer knows from elsewhere."""
    batch = "per_device_train_batch_size= and gradient_accumulation_steps= of TrainingArguments"
    instead = {
        "batch_size": batch,
        "sample_rate": batch,
        "max_physical_batch": "per_device_train_batch_size= of TrainingArguments",
        "epochs": "num_train_epochs= of TrainingArguments",
        "steps": "max_steps= of TrainingArguments",
        "loss": "compute_loss_func=, and try it with hoarfrost.check_independence",
    }
    for name in instead.keys() & settings.keys():
        raise InvalidValue(f"PrivateTrainer has no {name}=: write {instead[name]}")
