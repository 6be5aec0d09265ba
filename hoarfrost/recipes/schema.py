"""What a recipe may say. An unknown key, a wrong type or an impossible value is refused before anything runs."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown

# Far beyond any training run, and well within what float32, a thread pool or an accountant can work with.
SMALLEST, LARGEST = 1e-30, 1e30
MOST_STEPS = 100_000_000
MOST_EPOCHS = 1_000_000
MOST_OF_ANYTHING = 1_000_000  # a layer's width, classes, ...
MOST_LAYERS = 64
LONGEST_NAME = 50  # a folder is named after it


def _each(*checks: Callable[..., None]) -> AfterValidator:
    """Runs the library's own checks on a value, under the name of its key."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        for check in checks:
            check(**{info.field_name or "value": value})
        return value

    return AfterValidator(checked)


def _up_to(most: float) -> Callable[..., None]:
    def check(**values: Any) -> None:
        for name, value in values.items():
            if abs(value) > most:
                raise InvalidValue(f"{name} must be at most {most:g}, got {shown(value)}")

    return check


def _not_tiny(**values: float) -> None:
    for name, value in values.items():
        if value < SMALLEST:
            raise InvalidValue(f"{name} must be at least {SMALLEST:g}, got {value}")


Positive = Annotated[float, _each(validate.positive, validate.finite, _not_tiny, _up_to(LARGEST))]
NotNegative = Annotated[float, _each(validate.not_negative, validate.finite, _up_to(LARGEST))]
Real = Annotated[float, _each(validate.finite, _up_to(LARGEST))]
Probability = Annotated[float, _each(validate.probability)]
Rate = Annotated[float, _each(validate.rate)]
Share = Annotated[float, Field(ge=0, lt=1)]
Whole = Annotated[int, _each(validate.whole, _up_to(MOST_OF_ANYTHING))]
# The size comes first where the other check would turn a number of any length into floating point, and overflow.
Count = Annotated[int, _each(_up_to(MOST_OF_ANYTHING), validate.not_negative)]
# TOML knows lists only; the numbers in them stay strict.
Widths = Annotated[tuple[Whole, ...], Field(strict=False, max_length=MOST_LAYERS)]
Text = Annotated[str, Field(max_length=1000)]


Patterns = Annotated[
    tuple[Annotated[str, Field(max_length=200)], ...], Field(strict=False, min_length=1, max_length=64)
]


class Table(BaseModel):
    """A table of a recipe: its keys and no others, of exactly these types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def _either(self, *keys: str) -> None:
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise InvalidValue(f"give either {' or '.join(keys)}, {'not both' if given else 'one of them'}")


class Data(Table):
    """The ``name`` of a data set that Hoarfrost knows, or the ``path`` of a file of one's own.

    The file is a .safetensors or .npz with x_train, y_train, x_test and y_test. Its path is relative to the recipe's
    own file, and stays below that file's folder (see `read_recipe`).

    Examples become (x − ``mean``) / ``std``, with a number of each for every channel, or one for all. They are public
    constants: what the private examples themselves are like on average would tell about them.
    """

    name: Text | None = None
    path: Text | None = None
    classes: Whole | None = None
    mean: Annotated[tuple[Real, ...], Field(strict=False, min_length=1, max_length=MOST_LAYERS)] = (0.0,)
    std: Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=MOST_LAYERS)] = (1.0,)

    @model_validator(mode="after")
    def _one_source(self) -> "Data":
        self._either("name", "path")
        if self.name is not None and self.classes is not None:
            raise InvalidValue("classes is for data from a path; a data set with a name knows its own")
        return self


class Augment(Table):
    """Random shifts by up to ``shift`` pixels and mirroring, of images."""

    shift: Count = 0
    flip: bool = False


class Mlp(Table):
    """A multilayer perceptron with ReLU; the data set decides its first and last width."""

    name: Literal["mlp"]
    hidden: Widths = (64,)


class Cnn(Table):
    """A 3x3 convolution, tanh and 2x2 pooling for each number of channels, then one linear layer."""

    name: Literal["cnn"]
    channels: Annotated[Widths, Field(min_length=1)] = (16,)


class TanhCnn(Table):
    """The network for CIFAR-10 of Papernot et al. (2020)."""

    name: Literal["tanh_cnn"]


class MnistCnn(Table):
    """The network for MNIST of Papernot et al. (2020)."""

    name: Literal["mnist_cnn"]
    activation: Literal["tanh", "tempered_sigmoid"] = "tanh"


class LeNet(Table):
    """LeNet, for 28x28 images in one colour."""

    name: Literal["lenet"]


class ResNet18(Table):
    """ResNet-18 with GroupNorm, for 32x32 images."""

    name: Literal["resnet18_groupnorm"]


class Encoder(Table):
    """A transformer encoder of MiniLM's shape, for token ids."""

    name: Literal["encoder"]


Model = Annotated[Mlp | Cnn | TanhCnn | MnistCnn | LeNet | ResNet18 | Encoder, Field(discriminator="name")]


class Sgd(Table):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    lr: Positive
    momentum: NotNegative = 0.0
    dampening: NotNegative = 0.0
    nesterov: bool = False
    weight_decay: NotNegative = 0.0

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "Sgd":
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise InvalidValue("nesterov needs a momentum above 0 and no dampening")
        return self


class Adam(Table):
    """Adam."""

    kind: Literal["adam"]
    lr: Positive = 1e-3
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"]  # type: ignore[assignment]
    weight_decay: NotNegative = 0.01


class RmsProp(Table):
    """RMSprop."""

    kind: Literal["rmsprop"]
    lr: Positive = 1e-2
    alpha: Probability = 0.99
    eps: Positive = 1e-8
    momentum: NotNegative = 0.0
    weight_decay: NotNegative = 0.0


Optimizer = Annotated[Sgd | Adam | AdamW | RmsProp, Field(discriminator="kind")]


class Cosine(Table):
    """The learning rate falls from its full value to ``final`` times it, along half a cosine over the whole run.

    It first rises in a straight line for the share ``warmup`` of the steps.
    """

    kind: Literal["cosine"]
    warmup: Share = 0.0
    final: Annotated[float, Field(ge=0, le=1)] = 0.0


class Step(Table):
    """The learning rate is multiplied by ``factor``, at most 1, after every so many epochs."""

    kind: Literal["step"]
    every: Positive
    factor: Rate = 0.1


Schedule = Annotated[Cosine | Step, Field(discriminator="kind")]


class LocalClip(Table):
    """Every example's gradient is shortened to ``norm``, if it is longer."""

    kind: Literal["local"] = "local"
    norm: Positive = 1.0


Clip = LocalClip  # one style so far; another joins as `LocalClip | ...` with `discriminator="kind"`


class FreezeTable(Table):
    """``also`` is a second freezer: what either of them freezes rests."""

    also: "Freeze | None" = None


class FreezeLayers(FreezeTable):
    """The first layers (half of them), or those that are named, rest from some step on (`hoarfrost.freeze.Layers`)."""

    kind: Literal["layers"]
    first: Annotated[float, _each(validate.positive, validate.finite)] | None = None
    names: Patterns | None = None
    train: Patterns | None = None
    step: Annotated[int, _each(validate.count)] | None = None
    fraction: Share | None = None
    epoch: Annotated[int, _each(validate.count)] | None = None
    epsilon: Positive | None = None


class FreezeRandom(FreezeTable):
    """A random share of the coordinates rests (`hoarfrost.freeze.Random`)."""

    kind: Literal["random"]
    rate: Share
    cooling: Whole | None = None
    redraw: Literal["epoch", "step", "never"] = "epoch"
    granularity: Literal["element", "channel", "tensor"] = "element"
    velocity: Literal["stands", "flows"] = "stands"
    posterior: bool = False
    seed: Annotated[int, _each(_up_to(10**18), validate.not_negative)] = 0


class FreezeRanked(FreezeTable):
    """What the last epoch's noisy gradients show to be small rests (`hoarfrost.freeze.Ranked`)."""

    kind: Literal["ranked"]
    rate: Share
    cooling: Whole | None = None


class FreezeLargest(FreezeTable):
    """Weights that are small before training rest (`hoarfrost.freeze.Largest`)."""

    kind: Literal["largest"]
    share: Rate
    per: Literal["model", "layer"] = "model"


class FreezeRandomTensors(FreezeTable):
    """A random share of the tensors is live for the whole run (`hoarfrost.freeze.RandomTensors`)."""

    kind: Literal["random_tensors"]
    share: Rate
    seed: Annotated[int, _each(_up_to(10**18), validate.not_negative)] = 0


class FreezePruned(FreezeTable):
    """Weights that a model trained on ``public`` data holds to be small are zero (`hoarfrost.freeze.prune_from`).

    ``public`` is the name of a data set that anyone may see. The recipe's own can be named only with ``private =
    false``, and then the run is not private, and says so. Instead, ``reference`` is the path of a .safetensors file
    with the weights of such a model, as ``data.path`` is written.
    """

    kind: Literal["pruned"]
    keep: Rate
    public: Text | None = None
    reference: Text | None = None
    epochs: Whole = 20
    lr: Positive = 0.1
    per: Literal["model", "layer"] = "layer"
    rewind: bool = True
    biases: bool = False
    private: bool = True

    @model_validator(mode="after")
    def _one_of_both(self) -> "FreezePruned":
        self._either("public", "reference")
        return self


Freeze = Annotated[
    FreezeLayers | FreezeRandom | FreezeRanked | FreezeLargest | FreezeRandomTensors | FreezePruned,
    Field(discriminator="kind"),
]
for _table in (FreezeLayers, FreezeRandom, FreezeRanked, FreezeLargest, FreezeRandomTensors, FreezePruned):
    _table.model_rebuild()


class Privacy(Table):
    """The budget, and all that decides what it buys.

    ``epsilon`` calibrates the noise, or ``noise_multiplier`` states it (0 is allowed, and is not private).
    ``batch_size`` is the expected batch, ``sample_rate`` each example's chance to be in it. ``seed`` makes a run
    repeatable, noise included, so that nothing of it may be released.
    """

    delta: Probability
    epsilon: Positive | None = None
    noise_multiplier: NotNegative | None = None
    batch_size: Positive | None = None
    sample_rate: Rate | None = None
    epochs: Annotated[float, _each(validate.positive, validate.finite, _up_to(MOST_EPOCHS))] | None = None
    steps: Annotated[int, _each(validate.whole, _up_to(MOST_STEPS))] | None = None
    accountant: Literal["pld", "rdp"] = "pld"
    seed: Annotated[int, _each(_up_to(10**18), validate.not_negative)] | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> "Privacy":
        for pair in ALTERNATIVES["privacy"]:
            self._either(*pair)
        if self.batch_size is not None and self.batch_size < 1:
            raise InvalidValue(f"batch_size must be 1 or above, got {self.batch_size}; sample_rate can say less")
        if self.epochs is not None and self.sample_rate is not None and self.epochs > MOST_STEPS * self.sample_rate:
            raise InvalidValue(
                f"{self.epochs:g} epochs at a sample_rate of {self.sample_rate:g} take more than {MOST_STEPS:g} steps"
            )
        return self


class Loop(Table):
    """What changes neither the guarantee nor the budget.

    ``max_physical_batch`` bounds the memory; ``views`` averages so many augmented views of an example before it is
    clipped; the test set is evaluated after every ``evaluate_every`` epochs; ``threads`` is for the processor's cores.
    ``channels_last`` lays images out pixel by pixel, which is faster for some networks and slower for others.
    A checkpoint is written after every ``checkpoint_every`` steps, and the last ``checkpoints_kept`` of them stay; the
    ledger reserves ``reserve_ahead`` steps at a time, which is what a kill can lose.
    """

    max_physical_batch: Whole | None = None
    views: Annotated[int, _each(validate.whole, _up_to(1000))] = 1
    evaluate_every: Whole = 1
    threads: Annotated[int, _each(validate.whole, _up_to(1000))] | None = None
    channels_last: bool = False
    checkpoint_every: Whole = 50
    checkpoints_kept: Whole = 2
    reserve_ahead: Whole = 1


class Recipe(Table):
    """One training run.

    >>> Recipe.model_validate({
    ...     "data": {"name": "digits"}, "model": {"name": "mlp"}, "optimizer": {"kind": "sgd", "lr": 1.0},
    ...     "privacy": {"epsilon": 3.0, "delta": 1e-4, "batch_size": 250, "epochs": 20},
    ... }).clip.norm
    1.0
    """

    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$", max_length=LONGEST_NAME)] = "run"
    data: Data
    augment: Augment | None = None
    model: Model
    optimizer: Optimizer
    schedule: Schedule | None = None
    clip: Clip = LocalClip()
    freeze: Freeze | None = None
    privacy: Privacy
    loop: Loop = Loop()

    @model_validator(mode="after")
    def _views_differ(self) -> "Recipe":
        if self.loop.views > 1 and self.augment is None:
            raise InvalidValue(
                f"loop.views = {self.loop.views} without [augment] would repeat the very same example: say how views "
                "differ, such as augment.shift = 1"
            )
        return self


# Keys that say one thing in different ways: setting one of them replaces the others.
ALTERNATIVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "data": (("name", "path"),),
    "freeze": (("public", "reference"), ("first", "names", "train"), ("step", "fraction", "epoch", "epsilon")),
    "privacy": (("epsilon", "noise_multiplier"), ("batch_size", "sample_rate"), ("epochs", "steps")),
}
