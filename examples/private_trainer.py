"""Fine-tuning with transformers: PrivateTrainer in the place of Trainer.

A tiny BERT, made from a config, learns whether a text begins with an even word. Lines that differ from a run without
privacy have a comment. The script prints what the Trainer logs (no training loss: it would be a release without
noise), the accuracy on other texts, and the statement to publish with the weights. It needs
`pip install 'hoarfrost[hf]'`.

    python examples/private_trainer.py
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from hoarfrost.hf import PrivateTrainer  # instead of transformers.Trainer

WORDS = 32


def texts(count: int) -> list[dict]:
    """Five words each; the label is whether the first one is an even number."""
    found = torch.randint(1, WORDS, (count, 5)).tolist()
    return [{"input_ids": words, "labels": int(words[0] % 2 == 0)} for words in found]


def accuracy(predicted) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


torch.manual_seed(0)  # for texts and initial weights only; noise and batches do not depend on it
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, hidden_dropout_prob=0.0,
    )
)  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=50,  # so many texts at a time
        gradient_accumulation_steps=4,  # and 200 expected in a step
        num_train_epochs=2,
        learning_rate=2e-2,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = PrivateTrainer(
        model,
        args,
        train_dataset=texts(2000),
        eval_dataset=texts(500),  # of other texts, which need no protection
        compute_metrics=accuracy,
        epsilon=3.0,  # these three say what is private
        delta=1e-5,  # well below 1/2000
        clip=0.5,
    )
    trainer.train()
    print(f"accuracy on other texts: {trainer.evaluate()['eval_accuracy']:.2f}")
    print(trainer.statement())
