#!/usr/bin/env python3
"""Writes the model descriptions beside it: the layers of well-known models in named_parameters() order (docs/formats.md)."""

import json
import os


class Model:
    def __init__(self, name, model, parameters, spread, worker_correlation, mean_memory, norm_variation, **rest):
        self.json = {"schema_version": 1, "name": name, "model": model, "parameters": parameters, "spread": spread,
                     "worker_correlation": worker_correlation, "mean_memory": mean_memory, "norm_variation": norm_variation, **rest}
        self.layers = []

    def add(self, name, *shape, **rest):
        self.layers.append({"name": name, "shape": list(shape), **rest})

    def conv(self, name, out, inputs, size, bias=False):
        self.add(name + ".weight", out, inputs, size, size)
        if bias:
            self.add(name + ".bias", out)

    def norm(self, name, channels):
        self.add(name + ".weight", channels)
        self.add(name + ".bias", channels)

    def linear(self, name, out, inputs, bias=True, **rest):
        self.add(name + ".weight", out, inputs, **rest)
        if bias:
            self.add(name + ".bias", out, **rest)

    def write(self):
        total = 0
        for layer in self.layers:
            size = 1
            for extent in layer["shape"]:
                size *= extent
            total += size
        assert total == self.json["parameters"], (self.json["name"], total)
        text = json.dumps(self.json, indent=1)[:-2] + ",\n \"layers\": [\n  "
        text += ",\n  ".join(json.dumps(layer) for layer in self.layers) + "\n ]\n}\n"
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), self.json["name"] + ".json"), "w", encoding="utf-8") as file:
            file.write(text)


# Spread, correlation and memory of the convolutional network in docs/fidelity.md, captured in the middle of its training.
CNN = {"spread": 1.4, "worker_correlation": 0.025, "mean_memory": 0.78, "norm_variation": 0.14, "data_order": "iid"}
CLASSIFIER = {"scale": 2}


def resnet18():
    model = Model("resnet18", "ResNet-18 for 32 x 32 images, 10 classes", 11173962, **CNN)
    model.conv("conv1", 64, 3, 3)
    model.norm("bn1", 64)
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            prefix = f"layer{stage}.{block}."
            model.conv(prefix + "conv1", width, inputs, 3)
            model.norm(prefix + "bn1", width)
            model.conv(prefix + "conv2", width, width, 3)
            model.norm(prefix + "bn2", width)
            if inputs != width:
                model.conv(prefix + "shortcut.0", width, inputs, 1)
                model.norm(prefix + "shortcut.1", width)
            inputs = width
    model.linear("linear", 10, 512, **CLASSIFIER)
    return model


def resnet152():
    model = Model("resnet152", "ResNet-152 for 224 x 224 images, 1,000 classes", 60192808, **CNN)
    model.conv("conv1", 64, 3, 7)
    model.norm("bn1", 64)
    inputs = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 8), (256, 36), (512, 3)), 1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}."
            model.conv(prefix + "conv1", width, inputs, 1)
            model.norm(prefix + "bn1", width)
            model.conv(prefix + "conv2", width, width, 3)
            model.norm(prefix + "bn2", width)
            model.conv(prefix + "conv3", 4 * width, width, 1)
            model.norm(prefix + "bn3", 4 * width)
            if block == 0:
                model.conv(prefix + "downsample.0", 4 * width, inputs, 1)
                model.norm(prefix + "downsample.1", 4 * width)
            inputs = 4 * width
    model.linear("fc", 1000, 2048, **CLASSIFIER)
    return model


def vgg_features(model, plan, norm):
    index, inputs = 0, 3
    for width in plan:
        if width == "M":
            index += 1
            continue
        model.conv(f"features.{index}", width, inputs, 3, bias=True)
        if norm:
            model.norm(f"features.{index + 1}", width)
        index += 3 if norm else 2
        inputs = width


def vgg16():
    model = Model("vgg16", "VGG-16 with batch normalisation for 32 x 32 images, 10 classes", 14728266, **CNN)
    vgg_features(model, [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"], norm=True)
    model.linear("classifier", 10, 512, **CLASSIFIER)
    return model


def vgg19():
    model = Model("vgg19", "VGG-19 for 224 x 224 images, 1,000 classes", 143667240, **CNN)
    vgg_features(model, [64, 64, "M", 128, 128, "M"] + [256] * 4 + ["M"] + [512] * 4 + ["M"] + [512] * 4 + ["M"], norm=False)
    model.linear("classifier.0", 4096, 25088)
    model.linear("classifier.3", 4096, 4096)
    model.linear("classifier.6", 1000, 4096, **CLASSIFIER)
    return model


def lstm():
    words, size = 34069, 650
    model = Model("lstm-28.9m", "word LSTM, 2 layers of 650, vocabulary 34,069, tied embedding and softmax", 28949319, spread=3,
                  worker_correlation=0.034, mean_memory=0.0, norm_variation=0.11, data_order="stateful", deviation_memory=0.22,
                  rows=[{"rows": words, "draws": 700, "exponent": 0.95, "offset": 0, "repeat": 0.1, "order": "rank"}])
    model.add("encoder.weight", words, size, kind="softmax", scale=1.95, spread=2)
    for layer, input_scale, hidden_scale in ((0, 0.4, 0.49), (1, 0.37, 1)):
        model.add(f"rnn.weight_ih_l{layer}", 4 * size, size, scale=input_scale)
        model.add(f"rnn.weight_hh_l{layer}", 4 * size, size, scale=hidden_scale)
        model.add(f"rnn.bias_ih_l{layer}", 4 * size, scale=0.65)
        model.add(f"rnn.bias_hh_l{layer}", 4 * size, scale=0.65)
    model.add("decoder.bias", words, kind="softmax", scale=1.3)
    return model


def ncf():
    users, items = 138493, 26744
    model = Model("ncf-31.8m", "NeuMF, 138,493 users, 26,744 items, factors 64, MLP 256-256-128-64", 31832577, spread=2,
                  worker_correlation=0.002, mean_memory=0.0, norm_variation=0.1, data_order="iid",
                  rows=[{"rows": users, "draws": 65536, "exponent": 1.0, "offset": 700, "order": "random"},
                        {"rows": items, "draws": 65536, "exponent": 0.35, "offset": 800, "order": "random"}])
    model.add("mf_user_embed.weight", users, 64, kind="embedding", scale=0.1)
    model.add("mf_item_embed.weight", items, 64, kind="embedding", scale=0.1)
    model.add("mlp_user_embed.weight", users, 128, kind="embedding", scale=0.6)
    model.add("mlp_item_embed.weight", items, 128, kind="embedding", scale=1.5)
    for index, (out, inputs) in enumerate(((256, 256), (128, 256), (64, 128))):
        model.linear(f"mlp.{index}", out, inputs, scale=2, spread=2.5)
    model.linear("final", 1, 128, scale=3, spread=4)
    return model


def bert_large():
    size, words = 1024, 30522
    model = Model("bert-large", "BERT-large, uncased, with pooler, without the heads of pre-training", 335141888, spread=2,
                  worker_correlation=0.02, mean_memory=0.2, norm_variation=0.12, data_order="iid",
                  rows=[{"rows": words, "draws": 4096, "exponent": 0.95, "offset": 0, "order": "random"}])
    model.add("embeddings.word_embeddings.weight", words, size, kind="embedding", spread=2)
    model.add("embeddings.position_embeddings.weight", 512, size)
    model.add("embeddings.token_type_embeddings.weight", 2, size)
    model.norm("embeddings.LayerNorm", size)
    for layer in range(24):
        prefix = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            model.linear(prefix + "attention.self." + part, size, size)
        model.linear(prefix + "attention.output.dense", size, size)
        model.norm(prefix + "attention.output.LayerNorm", size)
        model.linear(prefix + "intermediate.dense", 4 * size, size)
        model.linear(prefix + "output.dense", size, 4 * size)
        model.norm(prefix + "output.LayerNorm", size)
    model.linear("pooler.dense", size, size)
    return model


def gpt2():
    size, words = 768, 50257
    model = Model("gpt2", "GPT-2 small, tied embedding and softmax", 124439808, spread=2, worker_correlation=0.02, mean_memory=0.2,
                  norm_variation=0.12, data_order="iid",
                  rows=[{"rows": words, "draws": 8192, "exponent": 0.95, "offset": 0, "order": "random"}])
    model.add("wte.weight", words, size, kind="softmax", spread=2)
    model.add("wpe.weight", 1024, size)
    for layer in range(12):
        prefix = f"h.{layer}."
        model.norm(prefix + "ln_1", size)
        # These matrices are stored [inputs, outputs].
        model.add(prefix + "attn.c_attn.weight", size, 3 * size)
        model.add(prefix + "attn.c_attn.bias", 3 * size)
        model.add(prefix + "attn.c_proj.weight", size, size)
        model.add(prefix + "attn.c_proj.bias", size)
        model.norm(prefix + "ln_2", size)
        model.add(prefix + "mlp.c_fc.weight", size, 4 * size)
        model.add(prefix + "mlp.c_fc.bias", 4 * size)
        model.add(prefix + "mlp.c_proj.weight", 4 * size, size)
        model.add(prefix + "mlp.c_proj.bias", size)
    model.norm("ln_f", size)
    return model


for make in (resnet18, resnet152, vgg16, vgg19, lstm, ncf, bert_large, gpt2):
    make().write()
