"""Right programs: the examples and tutorials that come with Opacus, as they are written here; small, else alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoarfrost
from tests.programs.corpus import Rows, right
from tests.programs.examples import colour_images, images, pairs, texts, texts_of_any_length
from tests.programs.loops import fit, padded, two_layers
from tests.programs.running import MakePrivate


class SampleConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 2, padding=1), nn.Conv2d(4, 8, 2, 1)
        self.fc1, self.fc2 = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


@right(images)
def mnist_as_in_the_examples_of_opacus(rows: Rows, make_private: MakePrivate) -> None:
    model = SampleConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0)
    train_loader = DataLoader(rows, batch_size=4)
    private = make_private(model, optimizer, train_loader, noise_multiplier=1.0)
    model, optimizer, train_loader = private
    criterion = nn.CrossEntropyLoss()
    for _epoch in range(2):
        model.train()
        for data, target in train_loader:
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
        private.epsilon()


@right(colour_images)
def cifar10_in_physical_batches(rows: Rows, make_private: MakePrivate) -> None:
    """Where Opacus has its BatchMemoryManager."""
    body = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 3))
    hoarfrost.make_compatible(model)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    model, optimizer, loader = make_private(
        model, optimizer, rows, batch_size=6, epochs=1, epsilon=50.0, delta=1e-5, max_physical_batch=2
    )
    for image, target in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(image), target).backward()
        optimizer.step()


class SampleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.pool = nn.Embedding(11, 8), nn.AdaptiveAvgPool1d(1)
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.embedding(x).transpose(1, 2)).squeeze(2)
        return self.fc2(F.relu(self.fc1(x)))


@right(texts)
def imdb_as_in_the_examples_of_opacus(rows: Rows, make_private: MakePrivate) -> None:
    model = SampleNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for words, label in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(words), label).backward()
        optimizer.step()


class CharLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.fc = nn.Embedding(11, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor, hidden: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x, _ = self.lstm(self.embedding(x), hidden)
        return self.fc(x[:, -1])


@right(texts)
def names_by_a_character_lstm(rows: Rows, make_private: MakePrivate) -> None:
    fit(CharLSTM(), rows, make_private)


@right(texts)
def names_by_a_character_lstm_that_is_handed_its_hidden_state(rows: Rows, make_private: MakePrivate) -> None:
    """As the tutorial does it: the state is [layers, examples, width], and the words are [examples, time]."""
    model = CharLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for words, label in loader:
        hidden = torch.zeros(1, len(words), 5), torch.zeros(1, len(words), 5)
        optimizer.zero_grad()
        F.cross_entropy(model(words, hidden), label).backward()
        optimizer.step()


class Discriminator(nn.Module):
    """Both verdicts in one forward, so that an example and the fake beside it are one row."""

    def __init__(self) -> None:
        super().__init__()
        self.main = two_layers(6, 1)

    def forward(self, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
        return self.main(real), self.main(fake)


@right(pairs)
def dcgan_with_a_private_discriminator(rows: Rows, make_private: MakePrivate) -> None:
    generator, discriminator = two_layers(2, 6), Discriminator()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    discriminator, optimizer_d, loader = make_private(discriminator, optimizer_d, rows, batch_size=4)
    for real, noise, _ in loader:  # the noise comes with the row, so that the oracle has the same
        with torch.no_grad():
            fake = generator(noise[:, :2])
        optimizer_d.zero_grad()
        on_real, on_fake = discriminator(real, fake)
        loss = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        loss.backward()
        optimizer_d.step()
        # The generator learns from noise and from weights that are private: no data, nothing to pay for.
        discriminator.requires_grad_(False)
        optimizer_g.zero_grad()
        F.softplus(-discriminator.main(generator(torch.ones(3, 2)))).mean().backward()
        optimizer_g.step()
        discriminator.requires_grad_(True)


class Classifier(nn.Module):
    """A pretrained body of which the last layers are trained, as in the tutorial about BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        mask = words == 0
        h = self.words(words)
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=mask)
        return self.head(h[:, 0])


@right(texts_of_any_length)
def the_last_layers_of_a_pretrained_text_classifier(rows: Rows, make_private: MakePrivate) -> None:
    model = Classifier()
    model.requires_grad_(False)
    for part in (model.layers[-1], model.head):
        part.requires_grad_(True)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=5e-4, eps=1e-8)
    data = DataLoader(rows, batch_size=4, collate_fn=padded)
    model, optimizer, loader = make_private(model, optimizer, data, max_physical_batch=3)
    for words, label in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(words), label).backward()
        optimizer.step()
