"""Recipes that reach for other files, are huge, endless or bottomless, or are full of absurd numbers."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

from tests.hostile.good import save_npz
from tests.support import payload
from tests.support.recipes import GOOD, changed


def _text(text: str) -> Callable[[Path], None]:
    return lambda file: _discard(file.write_text(text, "utf-8"))


def _bytes(content: bytes) -> Callable[[Path], None]:
    return lambda file: _discard(file.write_bytes(content))


def _discard(_: object) -> None: ...


def _privacy(old: str, new: str) -> Callable[[Path], None]:
    assert old in GOOD["privacy"]
    return _text(changed(privacy=GOOD["privacy"].replace(old, new)))


def _model(entries: str) -> Callable[[Path], None]:
    return _text(changed(model=entries))


def _path(path: str, prepare: Callable[[Path], object] = lambda folder: None) -> Callable[[Path], None]:
    """A recipe in a folder of its own names a path; outside of that folder lies data that could be read."""

    def write(file: Path) -> None:
        outside = file.parent / "secret.npz"
        save_npz(outside)
        # The recipe is a link to the one in the inner folder, whose folder is the root.
        inner = file.parent / "inner"
        inner.mkdir()
        prepare(inner)
        (inner / "recipe.toml").write_text(changed(data=f'path = "{path.replace("OUTSIDE", str(outside))}"'), "utf-8")
        file.symlink_to(inner / "recipe.toml")

    return write


def _table(entries: str, prepare: Callable[[Path], object] = lambda folder: None) -> Callable[[Path], None]:
    """A recipe in a folder of its own reads the table beside it; outside of that folder lies another one."""

    def write(file: Path) -> None:
        inner = file.parent / "inner"
        inner.mkdir()
        for path in (file.parent / "secret.csv", inner / "good.csv"):
            path.write_text("b,y\n" + "1,0\n2,1\n" * 4)
        prepare(inner)
        rule = "" if "bounds" in entries else "\nbounds = { b = [0, 9] }"
        data = f'path = "good.csv"\ntarget = "y"\nclasses = 2\n{entries}{rule}'
        (inner / "recipe.toml").write_text(changed(data=data), "utf-8")
        file.symlink_to(inner / "recipe.toml")

    return write


def _sparse(size: int) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with open(file, "wb") as opened:
            opened.truncate(size)

    return write


def _linked(target: str) -> Callable[[Path], None]:
    return lambda file: file.symlink_to(target)


def _folder(file: Path) -> None:
    file.mkdir()


FILES: dict[str, Callable[[Path], None]] = {
    # What is no recipe at all.
    "empty.toml": _bytes(b""),
    "pickle.toml": payload.pickled,
    "torch-save.toml": payload.torch_saved,
    "gzip.toml": _bytes(gzip.compress(changed().encode())),
    "utf-16.toml": _bytes(changed().encode("utf-16")),
    "nul-bytes.toml": _bytes(b"\0" * 1000),
    "not-utf-8.toml": _bytes(b'name = "\xff\xfe"\n'),
    "cut-in-the-middle.toml": _text(changed()[:-3]),
    "folder.toml": _folder,
    "pipe.toml": os.mkfifo,
    "endless-device.toml": _linked("/dev/zero"),
    "terminal.toml": _linked("/dev/tty"),
    "link-to-itself.toml": _linked("link-to-itself.toml"),
    "link-to-nothing.toml": _linked("nothing.toml"),
    # Huge and bottomless.
    "64-kib-and-one.toml": _text(changed() + "#" * 80 + ("\n" + "#" * 80) * 808),
    "sparse-gigabyte.toml": _sparse(1 << 30),
    "sparse-terabyte.toml": _sparse(1 << 40),
    "deep-lists.toml": _text("x = " + "[" * 500 + "]" * 500),
    "deep-lists-over-lines.toml": _text("x = " + "[\n" * 15000 + "]\n" * 15000),
    "deep-tables.toml": _text("x = " + "{a=" * 250 + "1" + "}" * 250),
    "deep-tables-over-lines.toml": _text("x = " + "[{a=[\n" * 8000),
    "long-dotted-key.toml": _text("a." * 32000 + "a = 1"),
    "long-table-name.toml": _text("[" + "a." * 32000 + "a]"),
    "many-dotted-keys.toml": _text("\n".join("a." * 500 + f"a{i} = 1" for i in range(60))),
    "many-unknown-keys.toml": _text("\n".join(f"k{i} = 1" for i in range(5000))),
    "many-unknown-tables.toml": _text("\n".join(f"[t{i}]" for i in range(5000)) + changed()),
    "many-similar-keys.toml": _text("\n".join(f"optimiser{i} = 1" for i in range(3000)) + changed()),
    "long-line.toml": _text(f'name = "{"a" * 60000}"' + changed()),
    "long-key.toml": _text("a" * 900 + " = 1\n" + changed()),
    "long-name.toml": _text(changed(f'name = "{"a" * 900}"')),
    "long-kind.toml": _text(changed(optimizer=f'kind = "{"sgd" * 300}"\nlr = 1')),
    "long-text-over-lines.toml": _text(changed(data="name = '''\n" + "digits\n" * 5000 + "'''")),
    "long-list.toml": _model('name = "mlp"\nhidden = [' + "1,\n" * 10000 + "]"),
    "many-class-weights.toml": _text(changed(loss="class_weights = [" + "1,\n" * 10000 + "]")),
    "loss-is-an-import.toml": _text(changed(loss='kind = "torch.nn.MSELoss"')),
    "negative-class-weight.toml": _text(changed(loss="class_weights = [1, -1e30]")),
    # Names and values that a terminal would obey.
    "escape-in-key.toml": _text('"\\u001b]0;owned\\u0007\\u001b[2J" = 1\n' + changed()),
    "escape-in-name.toml": _text(changed('name = "\\u001b[31mred"')),
    "escape-in-data-name.toml": _text(changed(data='name = "\\u001b[2J\\u001b[1;1H"')),
    "escape-in-kind.toml": _text(changed(optimizer='kind = "\\u001b[2J"')),
    "escape-in-path.toml": _path("\\u001b[2J.npz"),
    "newline-in-name.toml": _text(changed('name = "a\\nhoarfrost: all is well"')),
    "newline-in-key.toml": _text('"a\\nb" = 1\n' + changed()),
    "newline-in-data-name.toml": _text(changed(data='name = "digits\\nhoarfrost: all is well"')),
    "right-to-left-name.toml": _text(changed('name = "\\u202elmot"')),
    "nul-in-name.toml": _text(changed('name = "a\\u0000b"')),
    "\x1b[31mred\nfile-name.toml": _text("x = 1"),
    # Names that are code, or paths.
    "name-leads-out.toml": _text(changed('name = "../../outside"')),
    "name-is-absolute.toml": _text(changed('name = "/tmp/outside"')),
    "model-is-code.toml": _model("name = \"__import__('os').system('true')\""),
    "model-is-an-import.toml": _model('name = "builtins.eval"'),
    "optimizer-is-an-import.toml": _text(changed(optimizer='kind = "os.system"\nlr = 1')),
    "dunder-keys.toml": _text('__class__ = "os.system"\n__reduce__ = ["eval"]\n' + changed()),
    "data-name-leads-out.toml": _text(changed(data='name = "../../../etc/passwd"')),
    # Types.
    "list-of-tables.toml": _text(changed().replace("[data]", "[[data]]")),
    "table-for-text.toml": _text(changed(data="name = {a = 1}")),
    "number-for-path.toml": _text(changed(data="path = 1")),
    "date-for-number.toml": _privacy("steps = 1", "steps = 2024-01-01"),
    "time-for-name.toml": _text(changed("name = 12:00:00")),
    "truth-for-number.toml": _privacy("steps = 1", "steps = true"),
    "text-for-number.toml": _privacy("steps = 1", 'steps = "1"'),
    "fraction-for-whole.toml": _privacy("steps = 1", "steps = 1.0"),
    "lists-for-widths.toml": _model('name = "mlp"\nhidden = [[1]]'),
    "table-twice.toml": _text(changed() + "[data]\n"),
    # Absurd numbers.
    "steps-1e30.toml": _privacy("steps = 1", f"steps = {10**30}"),
    "steps-1000-digits.toml": _privacy("steps = 1", f"steps = {'9' * 1000}"),
    "steps-1000-hex-digits.toml": _privacy("steps = 1", f"steps = 0x{'f' * 1000}"),
    "steps-minus-1e400.toml": _privacy("steps = 1", f"steps = -{10**400}"),
    "seed-1e400.toml": _privacy("steps = 1", f"steps = 1\nseed = {10**400}"),
    "seed-minus-1e400.toml": _privacy("steps = 1", f"steps = 1\nseed = -{10**400}"),
    "epochs-1e300.toml": _privacy("steps = 1", "epochs = 1e300"),
    "epochs-at-no-rate.toml": _privacy("batch_size = 2\nsteps = 1", "sample_rate = 1e-300\nepochs = 1"),
    "batch-1e308.toml": _privacy("batch_size = 2", "batch_size = 1e308"),
    "batch-1e-300.toml": _privacy("batch_size = 2\nsteps = 1", "batch_size = 1e-300\nepochs = 1"),
    "noise-1e308.toml": _privacy("noise_multiplier = 1.0", "noise_multiplier = 1e308"),
    "noise-nan.toml": _privacy("noise_multiplier = 1.0", "noise_multiplier = nan"),
    "noise-inf.toml": _privacy("noise_multiplier = 1.0", "noise_multiplier = inf"),
    "delta-nan.toml": _privacy("delta = 1e-4", "delta = nan"),
    "rate-1e400-whole.toml": _privacy("batch_size = 2", f"sample_rate = {10**400}"),
    "lr-1e308.toml": _text(changed(optimizer='kind = "sgd"\nlr = 1e308')),
    "lr-1e999.toml": _text(changed(optimizer='kind = "sgd"\nlr = 1e999')),
    "betas-of-one.toml": _text(changed(optimizer='kind = "adam"\nbetas = [1.0, 1.0]')),
    "betas-too-few.toml": _text(changed(optimizer='kind = "adam"\nbetas = [0.5]')),
    "betas-too-many.toml": _text(changed(optimizer='kind = "adam"\nbetas = [0.5, 0.5, 0.5]')),
    "betas-nan.toml": _text(changed(optimizer='kind = "adam"\nbetas = [nan, nan]')),
    "schedule-grows-beyond-bounds.toml": _text(changed(schedule='kind = "step"\nevery = 0.001\nfactor = 1e30')),
    "schedule-every-moment.toml": _text(changed(schedule='kind = "step"\nevery = 1e-308')),
    "schedule-warmup-nan.toml": _text(changed(schedule='kind = "cosine"\nwarmup = nan')),
    "threads-2-to-63.toml": _text(changed(loop=f"threads = {2**63}")),
    "views-billions.toml": _text(changed(loop="views = 4000000000", augment="shift = 1")),
    "shift-1e400.toml": _text(changed(augment=f"shift = {10**400}")),
    "width-1e18.toml": _model(f'name = "mlp"\nhidden = [{10**18}]'),
    "network-of-a-trillion.toml": _model('name = "mlp"\nhidden = [1000000, 1000000]'),
    "network-of-64-trillions.toml": _model(f'name = "mlp"\nhidden = [{", ".join(["999999"] * 64)}]'),
    "channels-of-a-trillion.toml": _model('name = "cnn"\nchannels = [1000000, 1000000]'),
    "classes-1e18.toml": _text(changed(data=f'path = "a.npz"\nclasses = {10**18}')),
    "halved-64-times.toml": _model(f'name = "cnn"\nchannels = [{", ".join(["1"] * 64)}]'),
    # Paths that lead elsewhere.
    "path-dotdot.toml": _path("../secret.npz"),
    "path-dotdot-through-itself.toml": _path("../inner/../secret.npz"),
    "path-absolute.toml": _path("OUTSIDE"),
    "path-system.toml": _path("/etc/passwd"),
    "path-home.toml": _path("~/secret.npz"),
    "path-other-home.toml": _path("~root/secret.npz"),
    "path-link-to-file.toml": _path("a.npz", lambda folder: (folder / "a.npz").symlink_to("../secret.npz")),
    "path-link-to-folder.toml": _path("up/secret.npz", lambda folder: (folder / "up").symlink_to("..")),
    "path-link-to-system.toml": _path("a.npz", lambda folder: (folder / "a.npz").symlink_to("/dev/zero")),
    "path-links-in-a-circle.toml": _path("a.npz", lambda folder: (folder / "a.npz").symlink_to("a.npz")),
    "path-nul.toml": _path("a\\u0000.npz"),
    "path-too-long.toml": _path("a" * 900 + ".npz"),
    "path-empty.toml": _path(""),
    "path-here.toml": _path("."),
    "path-to-folder.toml": _path("a.npz", lambda folder: (folder / "a.npz").mkdir()),
    "path-to-pipe.toml": _path("a.npz", lambda folder: os.mkfifo(folder / "a.npz")),
    "path-to-pipe-of-tensors.toml": _path("a.safetensors", lambda folder: os.mkfifo(folder / "a.safetensors")),
    "path-to-device.toml": _path("/dev/stdin"),
    "path-to-process.toml": _path("/proc/self/environ"),
    "path-url.toml": _path("http://127.0.0.1:9/a.npz"),
    "path-file-url.toml": _path("file:///etc/passwd"),
    "path-variable.toml": _path("$HOME/secret.npz"),
    # Tables.
    "table-test-dotdot.toml": _table('test = "../secret.csv"'),
    "table-test-absolute.toml": _table('test = "/etc/passwd"'),
    "table-test-link.toml": _table('test = "a.csv"', lambda folder: (folder / "a.csv").symlink_to("../secret.csv")),
    "table-test-to-pipe.toml": _table('test = "a.csv"', lambda folder: os.mkfifo(folder / "a.csv")),
    "table-test-is-a-number.toml": _table("test = 1"),
    "table-bounds-nan.toml": _table("test_share = 0.5\nbounds = { b = [nan, nan] }"),
    "table-bounds-1e999.toml": _table("test_share = 0.5\nbounds = { b = [0, 1e999] }"),
    "table-bounds-equal.toml": _table("test_share = 0.5\nbounds = { b = [1, 1] }"),
    "table-bounds-of-three.toml": _table("test_share = 0.5\nbounds = { b = [1, 2, 3] }"),
    "table-bounds-is-a-list.toml": _table("test_share = 0.5\nbounds = [1, 2]"),
    "table-bounds-many.toml": _table("test_share = 0.5\n" + "\n".join(f"bounds.c{n} = [0, 1]" for n in range(2000))),
    "table-bounds-deep.toml": _table("test_share = 0.5\nbounds = { b = { c = { d = 1 } } }"),
    "table-bounds-escape.toml": _table('test_share = 0.5\nbounds = { "\\u001b[2J" = [0, 1] }'),
    "table-categories-of-numbers.toml": _table("test_share = 0.5\ncategories = { b = [1, 2] }"),
    "table-share-nan.toml": _table("test_share = nan"),
    "table-share-of-all.toml": _table("test_share = 1"),
    "table-seed-1e400.toml": _table(f"test_share = 0.5\nsplit_seed = {10**400}"),
    "table-separator-newline.toml": _table('test_share = 0.5\nseparator = "\\n"'),
    "table-noise-nan.toml": _table('test_share = 0.5\nscaling = "private"\nscaling_noise = nan'),
    "table-keys-for-arrays.toml": _path("a.npz\"\ntest = \"b.csv"),
    "path-to-npy.toml": _path("a.npy", lambda folder: payload.pickled(folder / "a.npy")),
    "path-to-pt.toml": _path("a.pt", lambda folder: payload.torch_saved(folder / "a.pt")),
    "path-to-pkl.toml": _path("a.pkl", lambda folder: payload.pickled(folder / "a.pkl")),
}  # fmt: skip
