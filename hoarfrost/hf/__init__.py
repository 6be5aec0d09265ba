"""At home where pretrained models live: what works together with transformers and PEFT."""

from hoarfrost.hf.adapters import add_adapters as add_adapters
