"""Every method of PEFT is right, by plain passes of one unpadded example each, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.errors import NotPrivate
from hoarfrost.hf import add_adapters
from hoarfrost.observers import Observer, Released
from tests import oracle
from tests.support.engines import flat

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

Make = Callable[[], nn.Module]
TEXT = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LENGTHS = (6, 3, 4, 1, 5)
ATTENTION = ["query", "value"]


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**TEXT, **NO_DROPOUT, max_position_embeddings=16)
    )


def gpt2() -> nn.Module:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(vocab_size=31, n_embd=12, n_layer=1, n_head=2, n_positions=16, **dropout)
    return transformers.GPT2LMHeadModel(config)


def words() -> dict[str, Tensor]:
    """Sentences of different lengths, padded, with a label each."""
    drawn = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 31, (len(LENGTHS), max(LENGTHS)), generator=drawn)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long(), "label": torch.tensor([0, 1, 1, 0, 1])}


def example(number: int) -> dict[str, Tensor]:
    """One of them, without its padding."""
    rows = {key: t[number : number + 1] for key, t in words().items()}
    return {key: t if t.dim() == 1 else t[:, : LENGTHS[number]] for key, t in rows.items()}


def losses(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Of each example: of its class, or of every word that is there."""
    ids, mask, label = batch["input_ids"], batch["attention_mask"], batch["label"]
    logits = model(input_ids=ids, attention_mask=mask).logits
    if logits.dim() == 2:
        return F.cross_entropy(logits, label, reduction="none")
    logits = logits[:, -mask.shape[1] :]  # behind the prompt, where there is one
    return (logits.log_softmax(2)[:, :, 5] * mask).sum(1)


def tuned(base: Make, config: str, **options: Any) -> Make:
    """A method of PEFT on a model."""

    def make() -> nn.Module:
        task = "CAUSAL_LM" if base is gpt2 else "SEQ_CLS"
        return peft.get_peft_model(base(), getattr(peft, config)(task_type=task, **options))

    return make


def on_attention(config: str, **options: Any) -> Make:
    return tuned(bert, config, target_modules=ATTENTION, **options)


def on_conv1d(config: str, **options: Any) -> Make:
    return tuned(gpt2, config, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True, **options)


def biases() -> nn.Module:
    model = bert()
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias") or "classifier" in name)
    return model


EVERY_EMBEDDING = ["word_embeddings", "position_embeddings", "token_type_embeddings"]
METHODS: dict[str, Make] = {
    "LoRA": on_attention("LoraConfig", r=2),
    "LoRA on every linear layer": tuned(bert, "LoraConfig", r=2, target_modules="all-linear"),
    "LoRA with biases": on_attention("LoraConfig", r=2, bias="lora_only", lora_bias=True),
    "LoRA on Conv1D": on_conv1d("LoraConfig", r=2),
    "LoRA on words": tuned(bert, "LoraConfig", r=2, target_modules=["word_embeddings"]),
    "LoRA on every embedding": tuned(bert, "LoraConfig", r=2, target_modules=EVERY_EMBEDDING),
    "LoRA on positions of GPT-2": tuned(gpt2, "LoraConfig", r=2, target_modules=["wte", "wpe"]),
    "LoRA and new words": on_attention("LoraConfig", r=2, trainable_token_indices={"word_embeddings": [1, 2, 3]}),
    "DoRA": on_attention("LoraConfig", r=2, use_dora=True),
    "DoRA on every linear layer": tuned(bert, "LoraConfig", r=2, target_modules="all-linear", use_dora=True),
    "DoRA on words": tuned(bert, "LoraConfig", r=2, target_modules=["word_embeddings"], use_dora=True),
    "DoRA on Conv1D": on_conv1d("LoraConfig", r=2, use_dora=True),
    "AdaLoRA": on_attention("AdaLoraConfig", init_r=3, target_r=2, total_step=10),
    "IA3": on_attention("IA3Config", feedforward_modules=[]),
    "IA3 on Conv1D": on_conv1d("IA3Config", feedforward_modules=["mlp.c_proj"]),
    "LoHa": on_attention("LoHaConfig", r=2),
    "LoKr": on_attention("LoKrConfig", r=1, decompose_both=True, decompose_factor=4),
    "VeRA": on_attention("VeraConfig", r=2),
    "OFT": on_attention("OFTConfig", oft_block_size=4),
    "OFT, blocks shared": on_attention("OFTConfig", oft_block_size=4, block_share=True, use_cayley_neumann=False),
    "constrained OFT": on_attention("OFTConfig", oft_block_size=4, coft=True),
    "BOFT": on_attention("BOFTConfig", boft_block_size=4),
    "HRA": on_attention("HRAConfig", r=2),
    "HRA, orthogonal": on_attention("HRAConfig", r=2, apply_GS=True),
    "FourierFT": on_attention("FourierFTConfig", n_frequency=10),
    "C3A": on_attention("C3AConfig", block_size=4),
    "LN tuning": tuned(bert, "LNTuningConfig", target_modules=["LayerNorm"]),
    "BitFit": biases,
    "prefix tuning": tuned(bert, "PrefixTuningConfig", num_virtual_tokens=3),
    "prefix tuning, projected": tuned(
        bert, "PrefixTuningConfig", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=12
    ),
    "prefix tuning of GPT-2": tuned(gpt2, "PrefixTuningConfig", num_virtual_tokens=3),
    "prompt tuning": tuned(bert, "PromptTuningConfig", num_virtual_tokens=3),
    "prompt tuning of GPT-2": tuned(gpt2, "PromptTuningConfig", num_virtual_tokens=3),
    "p-tuning": tuned(bert, "PromptEncoderConfig", num_virtual_tokens=3, encoder_hidden_size=12),
    "p-tuning with an LSTM": tuned(
        gpt2, "PromptEncoderConfig", num_virtual_tokens=3, encoder_hidden_size=8, encoder_reparameterization_type="LSTM"
    ),
    "Houlsby adapters": lambda: add_adapters(bert(), size=2, kind="houlsby"),
    "Pfeiffer adapters": lambda: add_adapters(bert(), size=2, kind="pfeiffer"),
    "adapters in GPT-2": lambda: add_adapters(gpt2(), size=2, kind="houlsby"),
}  # fmt: skip

REFUSED = {  # what the message says
    "constrained OFT": "oft_R.default.weight changes",
    "C3A": r"c3a_kernel.default .* \(in an autograd.Function",
}
SLOW = {  # others show nearly the same
    "LoRA on every linear layer", "LoRA with biases", "LoRA on Conv1D", "LoRA on positions of GPT-2", "IA3 on Conv1D",
    "DoRA on every linear layer", "DoRA on Conv1D", "OFT, blocks shared", "HRA, orthogonal", "prefix tuning, projected",
    "prompt tuning of GPT-2", "LN tuning", "constrained OFT", "Pfeiffer adapters", "adapters in GPT-2",
    "prefix tuning of GPT-2", "prompt tuning", "VeRA", "DoRA on words", "LoHa",
}  # fmt: skip


class Clipped(Observer):
    """Keeps the clipped sum of the last step."""

    def on_release(self, released: Released) -> None:
        self.sums = {name: t.clone() for name, t in released.clipped.items()}


def build(make: Make) -> nn.Module:
    """The model, with what is trained moved away from where it begins: many of its gates are closed there."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p += 0.1 * torch.randn_like(p)
    return model.train()


def private(model: nn.Module, **options: Any) -> hoarfrost.Private:
    """The model made private, all examples in every batch."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    plan = {"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 3, "delta": 1e-3} | options
    return hoarfrost.make_private(model, optimizer, TensorDataset(*words().values()), **plan)


def step(run: hoarfrost.Private) -> None:
    model, optimizer, loader = run
    batch = dict(zip(words(), next(iter(loader)), strict=True))
    optimizer.backward(losses(model, batch))
    optimizer.step()


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in METHODS])
def test_a_method_is_right_and_moves_every_tensor_or_is_refused_by_name(name: str) -> None:
    model = build(METHODS[name])
    per_example = [
        oracle.gradients(model, example(k), lambda *given: losses(*given).sum())[0] for k in range(len(LENGTHS))
    ]
    norm = oracle.halving_norm(per_example)
    expected = oracle.clipped_sum(per_example, norm)
    assert all(bool(want.any()) for want in expected.values()), "the oracle tells nothing of a tensor without gradient"
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run, seen = private(model, clip=norm), Clipped()
    run.observe(seen)
    if name in REFUSED:
        with pytest.raises(NotPrivate, match=REFUSED[name]):
            step(run)
        return
    step(run)
    assert seen.sums.keys() == expected.keys()
    torch.testing.assert_close(flat(seen.sums), flat(expected), rtol=1e-3, atol=3e-4 * norm)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == expected.keys()


def test_the_penalty_of_adalora_belongs_to_no_example() -> None:
    model = build(METHODS["AdaLoRA"])
    run = private(model)
    batch = next(iter(run.loader))
    with pytest.raises(NotPrivate, match="orth_reg_weight"):
        run.model(input_ids=batch[0], attention_mask=batch[1], labels=batch[2]).loss.backward()


def test_adalora_allocates_ranks_by_the_private_gradient() -> None:
    config = {"init_r": 3, "target_r": 1, "tinit": 0, "tfinal": 1, "deltaT": 1, "total_step": 3}
    model = tuned(bert, "AdaLoraConfig", target_modules=ATTENTION, **config)()
    run = private(model)
    for number in range(3):
        step(run)
        model.base_model.update_and_allocate(number)
    ranks = [p for name, p in model.named_parameters() if "lora_E" in name]
    assert sum(int((p == 0).sum()) for p in ranks) == 4  # of six, a target of two is left


def last_layer_alone(base: Make = bert) -> nn.Module:
    """LoRA in the second of two layers."""
    model = base()
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=ATTENTION, layers_to_transform=[1])
    return peft.get_peft_model(model, config)


def deep() -> nn.Module:
    config = transformers.BertConfig(**{**TEXT, "num_hidden_layers": 2}, **NO_DROPOUT, max_position_embeddings=16)
    return transformers.BertForSequenceClassification(config)


def note_whether_differentiated(into: dict[str, bool], name: str, module: nn.Module, args: Any, output: Any) -> None:
    into[name] = isinstance(output, Tensor) and output.requires_grad


def nodes(loss: Tensor) -> int:
    """How many there are in its graph."""
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [after for after, _ in node.next_functions]
    return len(seen)


def test_a_trunk_that_nothing_trains_below_is_not_differentiated() -> None:
    counts = []
    for is_private in (False, True):
        torch.manual_seed(0)
        model = last_layer_alone(deep)
        batch, run = words(), None
        if is_private:
            run = private(model)
            batch = dict(zip(words(), next(iter(run.loader)), strict=True))
            losses(run.model, batch)  # which looks at the model
        outputs: dict[str, bool] = {}
        for name, module in model.named_modules():
            module.register_forward_hook(partial(note_whether_differentiated, outputs, name))
        counts.append(nodes(losses(model, batch).sum()))
        below = {name for name in outputs if "embeddings" in name or "encoder.layer.0" in name}
        assert below
        assert not any(outputs[name] for name in below)
    assert counts[1] <= 1.5 * counts[0]


@pytest.mark.slow
def test_a_compiled_model_is_trained_as_it_runs() -> None:
    model = build(METHODS["LoRA"])
    compiled = torch.compile(model)
    with pytest.warns(UserWarning, match="torch.compile is set aside"):
        run = private(compiled)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step(run)
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_what_was_trained_is_saved_merged_and_trained_further(tmp_path: Any) -> None:
    model = build(METHODS["LoRA"])
    run = private(model)
    step(run)
    model.eval()
    with torch.no_grad():
        want = losses(model, words())
    model.save_pretrained(tmp_path)
    (tmp_path / "privacy.txt").write_text(str(run.statement()))
    torch.manual_seed(0)
    loaded = peft.PeftModel.from_pretrained(bert(), tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(losses(loaded, words()), want)
    merged = model.merge_and_unload()
    with torch.no_grad():
        torch.testing.assert_close(losses(merged, words()), want)
    for name, p in merged.named_parameters():
        p.requires_grad_("classifier" in name)
    before = merged.classifier.weight.detach().clone()
    again = private(merged.train(), after=run)
    step(again)
    assert not torch.equal(merged.classifier.weight, before)
    assert again.epsilon() > run.epsilon()
