"""Language models, taggers, translation, speech; Hugging Face's models from a configuration."""

import math
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

from benchmarks.compatible.table import SAMPLES, Samples, generator, script, sentences, text


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.n_head = n_head

    def forward(self, x):
        B, T, C = x.size()
        heads = (each.view(B, T, self.n_head, -1).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size=20, block_size=8, n_layer=2, n_embd=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h, self.ln_f = nn.ModuleList(Block(n_embd, 2) for _ in range(n_layer)), nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1)


class Characters(Dataset):
    def __init__(self, block_size=8):
        self.data, self.block_size = text(200, count=1)[0], block_size

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, index):
        chunk = self.data[index : index + self.block_size + 1]
        return chunk[:-1], chunk[1:]


@script(common=3, settings={"clip_norm": 1.0}, quick=True)
class NanoGpt:
    """A GPT with tied weights, groups with and without decay, warm-up and cosine, clipping; it prints each loss."""

    def create_model(self):
        return GPT()

    def create_data(self):
        return Characters()

    def create_optimizer(self, model, config):
        decay = [p for p in model.parameters() if p.dim() >= 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    def create_scheduler(self, optimizer, config):
        def rate(it):
            if it < 2:
                return (it + 1) / 3
            return 0.1 + 0.45 * (1 + math.cos(math.pi * (it - 2) / (config.num_iterations - 2)))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def loss(self, model, batch, step):
        _, loss = model(*batch)
        print(f"iter {step}: loss {loss.item():.4f}")
        return loss


class RnnModel(nn.Module):
    def __init__(self, tokens=20, width=12):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(tokens, width)
        self.rnn, self.decoder = nn.LSTM(width, width, 2, dropout=0.2, batch_first=True), nn.Linear(width, tokens)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, x):
        output, _ = self.rnn(self.drop(self.encoder(x)))
        return F.log_softmax(self.decoder(self.drop(output)), -1)


@script(common=2, random=True, settings={"clip_norm": 0.25})
class WordLanguageModel:
    """An LSTM with dropout between its layers, plain SGD with a high rate, clipping; it prints perplexities."""

    total = 0.0

    def create_model(self):
        return RnnModel()

    def create_data(self):
        return text()

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=2.0)

    def loss(self, model, batch, step):
        loss = nn.NLLLoss()(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        self.total += loss.item()
        if step % 3 == 0:
            print(f"| {step} batches | loss {self.total / 3:5.2f} | ppl {math.exp(self.total / 3):8.2f}")
            self.total = 0.0
        return loss


class Tagger(nn.Module):
    def __init__(self, words=20, tags=4):
        super().__init__()
        self.embedding = nn.Embedding(words, 8, padding_idx=0)
        self.lstm, self.out = nn.LSTM(8, 8, bidirectional=True, batch_first=True), nn.Linear(16, tags)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embedding(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])


def padded(batch):
    tags = pad_sequence([each % 4 for each in batch], batch_first=True, padding_value=-100)
    return pad_sequence(batch, batch_first=True), torch.tensor([len(each) for each in batch]), tags


@script(common=2, quick=True)
class LstmTagger:
    """Tags of words: packed sequences, padded by a collate_fn, whose padding the loss ignores; a running F-score."""

    hits = 0

    def create_model(self):
        return Tagger()

    def create_data(self):
        return DataLoader(Samples(sentences()), batch_size=16, shuffle=True, collate_fn=padded)

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        words, lengths, tags = batch
        scores = model(words, lengths)
        self.hits += int((scores.argmax(-1) == tags).sum())
        return F.cross_entropy(scores.transpose(1, 2), tags)


def bag(batch):
    offsets = torch.tensor([0, *(len(each) for each in batch[:-1])]).cumsum(0)
    return torch.cat(batch), offsets, torch.tensor([int(each.sum()) % 3 for each in batch])


@script(common=1, settings={"clip_norm": 0.1})
class TextClassifier:
    """Words of all texts in a row, with offsets, for an EmbeddingBag; the rate falls each epoch."""

    def create_model(self):
        return nn.ModuleList([nn.EmbeddingBag(20, 8), nn.Linear(8, 3)])

    def create_data(self):
        return DataLoader(Samples(sentences()), batch_size=16, shuffle=True, collate_fn=bag)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.5)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def loss(self, model, batch):
        words, offsets, labels = batch
        return F.cross_entropy(model[1](model[0](words, offsets)), labels)


class Seq2Seq(nn.Module):
    def __init__(self, tokens=20, width=12):
        super().__init__()
        self.source, self.target = nn.Embedding(tokens, width), nn.Embedding(tokens, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRUCell(2 * width, width)
        self.out = nn.Linear(width, tokens)

    def forward(self, source, target, teacher_forcing):
        encoded, hidden = self.encoder(self.source(source))
        hidden, token, found = hidden[0], target[:, 0], []
        for t in range(1, target.shape[1]):
            attention = (encoded @ hidden[:, :, None]).softmax(1)
            hidden = self.decoder(torch.cat([self.target(token), (attention * encoded).sum(1)], 1), hidden)
            found.append(self.out(hidden))
            token = target[:, t] if teacher_forcing else found[-1].argmax(1)
        return torch.stack(found, 1)


@script(common=2, random=True)
class Translator:
    """A GRU with attention; Python's random numbers choose for each batch whether it gets the right words."""

    def create_model(self):
        return Seq2Seq()

    def create_data(self):
        return Samples(text(7), text(7).flip(1))

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(self, model, batch):
        source, target = batch
        scores = model(source, target, teacher_forcing=random.random() < 0.5)
        return F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten())


class Encoder(nn.Module):
    def __init__(self, tokens=20, width=16):
        super().__init__()
        self.embedding, self.out = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.body = nn.Transformer(width, 2, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        padding = source == 0
        return self.out(
            self.body(
                self.embedding(source),
                self.embedding(target),
                tgt_mask=mask,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
        )


def pairs(batch):
    return pad_sequence(batch, batch_first=True), pad_sequence([each.flip(0) for each in batch], batch_first=True)


@script(common=2)
class Transformer:
    """nn.Transformer for translation: padding masks, label smoothing, and the rate of the first paper."""

    def create_model(self):
        return Encoder()

    def create_data(self):
        return DataLoader(Samples(sentences()), batch_size=16, shuffle=True, collate_fn=pairs)

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=0.02, betas=(0.9, 0.98), eps=1e-9)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) ** -0.5, (n + 1) * 4**-1.5))

    def loss(self, model, batch):
        source, target = batch
        scores = model(source, target[:, :-1]).flatten(0, 1)
        return F.cross_entropy(scores, target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)


@script(common=1, random=True)
class MaskedWords:
    """BERT's objective by hand: the mask is drawn in the loss, which is a sum by the number of masked words."""

    def create_model(self):
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        return nn.Sequential(nn.Embedding(20, 16), nn.TransformerEncoder(layer, 1), nn.Linear(16, 20))

    def create_data(self):
        return text()

    def loss(self, model, batch):
        masked = torch.rand(batch.shape, device=batch.device) < 0.3
        scores = model(batch.masked_fill(masked, 0))
        return F.cross_entropy(scores[masked], batch[masked], reduction="sum"), masked.sum()


@script(common=1)
class Speech:
    """A recogniser: frames of unequal lengths, an LSTM, and CTC; gradients are clipped by value in a hook."""

    def create_model(self):
        return nn.ModuleDict({"rnn": nn.LSTM(5, 12, batch_first=True), "out": nn.Linear(12, 7)})

    def create_data(self):
        frames = torch.randn(SAMPLES, 12, 5, generator=generator())
        counts = torch.randint(8, 13, (SAMPLES,), generator=generator())
        return frames, text(3, 7), counts

    def create_optimizer(self, model, config):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.05))
        return optimizer

    def loss(self, model, batch):
        frames, targets, counts = batch
        scores = F.log_softmax(model["out"](model["rnn"](frames)[0]), -1).transpose(0, 1)
        return nn.CTCLoss()(scores, targets, counts, torch.full((len(targets),), 3))


def with_padding(batch):
    fill = {"labels": -100}
    return {
        name: pad_sequence([each[name] for each in batch], batch_first=True, padding_value=fill.get(name, 0))
        for name in batch[0]
    }


@script(common=3)
class BertClassifier:
    """Hugging Face's BERT for sequence classification: dicts padded by a collator, a linear schedule with warm-up."""

    def create_model(self):
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=3, **sizes, **dropout))

    def create_data(self):
        rows = [
            {"input_ids": each, "attention_mask": torch.ones_like(each), "labels": each.sum()[None] % 3}
            for each in sentences()
        ]
        return DataLoader(Samples(rows), batch_size=16, shuffle=True, collate_fn=with_padding)

    def create_scheduler(self, optimizer, config):
        from transformers import get_linear_schedule_with_warmup

        return get_linear_schedule_with_warmup(optimizer, 2, config.num_iterations)


@script(common=3)
class LoraCausalLm:
    """GPT-2 with peft's LoRA, on padded texts whose padding has the label -100."""

    def create_model(self):
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2, **dropout))
        return get_peft_model(gpt2, LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True))

    def create_data(self):
        rows = [{"input_ids": each, "attention_mask": torch.ones_like(each), "labels": each} for each in sentences()]
        return DataLoader(Samples(rows), batch_size=16, shuffle=True, collate_fn=with_padding)

    def create_optimizer(self, model, config):
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
