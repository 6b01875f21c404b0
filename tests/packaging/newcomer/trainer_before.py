# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A training script as someone has it who trains with Hugging Face's Trainer: torchrun --nproc-per-node 2 train.py."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def main() -> None:
    torch.manual_seed(1)
    tokens = torch.randint(1000, (8192, 32))
    labels = ((tokens < 500).sum(1) > 16).long()
    data = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
    config = BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    args = TrainingArguments(output_dir="out", use_cpu=True, num_train_epochs=1, per_device_train_batch_size=8)
    trainer = Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=data)
    trainer.train()


if __name__ == "__main__":
    main()
