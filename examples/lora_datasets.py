"""Fine-tune a small transformers model with LoRA (peft), on a shuffled stream of Hugging Face's datasets.

    python examples/lora_datasets.py --run runs/lora

Kill it whenever you like, and give the same command again: it goes on, and ends with the same digest. Nothing is
downloaded: the model has random weights, the task is to reverse a word, and a byte is a token. A checkpoint holds the
adapter alone, and names its base by content.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import datasets
import numpy as np
import torch
from digest import digest
from peft import LoraConfig, get_peft_model
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

import segue

LENGTH = 24
IGNORED = -100


def words(shards: list[int], num_words: int) -> Iterator[dict[str, str]]:
    """Yield the words of some shards. The same in every process."""
    for shard in shards:
        draw = random.Random(shard)
        for _ in range(num_words):
            yield {"word": "".join(draw.choices("segue", k=draw.randint(3, LENGTH // 2 - 2)))}


def tokens(row: dict[str, str]) -> dict[str, list[int]]:
    """Turn `word` into the bytes of `word=drow.`, of which the part behind `=` is learned."""
    question, answer = f"{row['word']}=".encode(), f"{row['word'][::-1]}.".encode()
    padding = LENGTH - len(question) - len(answer)
    return {
        "input_ids": [*question, *answer, *[0] * padding],
        "labels": [*[IGNORED] * len(question), *answer, *[IGNORED] * padding],
    }


def pretrained() -> nn.Module:
    """Return the base, as `from_pretrained` would: the same weights in every process."""
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, attention_dropout=0.1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def stacked(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name] for row in rows]) for name in ("input_ids", "labels")}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="the folder of the run's checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--words", type=int, default=1024, help="words in each of four shards")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--window", type=int, default=2, help="batches of one optimizer step")
    parser.add_argument("--save-every", type=int, default=20, help="batches from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    stream = datasets.IterableDataset.from_generator(
        words, gen_kwargs={"shards": [0, 1, 2, 3], "num_words": args.words}
    )
    stream = stream.shuffle(seed=0, buffer_size=256).map(tokens, remove_columns=["word"])
    data = segue.DataPosition(StatefulDataLoader(stream, batch_size=args.batch, collate_fn=stacked))
    batches = 4 * args.words // args.batch * args.epochs

    lora = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj", "down_proj"],
        modules_to_save=["lm_head"],
    )  # fmt: skip
    model = get_peft_model(pretrained(), lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    scheduler = get_linear_schedule_with_warmup(optimizer, 10, batches // args.window)

    training = segue.Training(
        model,
        optimizer,
        scheduler,
        model_state=segue.TrainableOnly(base=segue.base_identity(model)),
        components={"data": data},
    )
    with segue.Checkpointer(
        training, args.run, every_microbatches=args.save_every, keep_last=3
    ) as checkpointer:
        state = checkpointer.resume(default={"losses": []})
        print(f"from batch {len(state['losses'])} on")
        while data.epoch < args.epochs:
            for batch in data:
                loss = model(**batch).loss / args.window
                loss.backward()
                state["losses"].append(loss.item() * args.window)
                if len(state["losses"]) % args.window == 0:
                    nn.utils.clip_grad_norm_(trained, 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if checkpointer.save_if_due(state):
                    raise SystemExit("preempted; the same command goes on")
            print(f"epoch {data.epoch}: loss {state['losses'][-1]:.4f}")
        checkpointer.save(state)  # the end itself

    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    end = {name: value.state_dict() for name, value in objects.items()}
    gradients = [parameter.grad for parameter in trained]
    streams = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    print("digest", digest([state, end, gradients, streams]))


if __name__ == "__main__":
    main()
