"""Train an image classifier: BatchNorm, random augmentation in two workers, OneCycleLR, evaluation of averaged weights.

    python examples/image_classifier.py --run runs/classifier

Kill it whenever you like, and give the same command again: it goes on, and ends with the same digest. The images are
stripes that it draws itself; the class is how many there are, and whether they stand or lie.
"""

from __future__ import annotations

import argparse
import random

import numpy as np
import torch
from digest import digest
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import segue

NUM_CLASSES = 8
SIZE = 16


class Stripes(Dataset):
    """Noisy pictures of one to four stripes. The same in every process."""

    def __init__(self, num_images: int, *, seed: int, augment: bool = False) -> None:
        self.labels = torch.arange(num_images) % NUM_CLASSES
        self.augment = augment
        waves = torch.sin(torch.arange(SIZE) / SIZE * 2 * torch.pi * torch.arange(1, 5)[:, None])
        standing = waves[:, None, None, :].expand(4, 1, SIZE, SIZE)
        clean = torch.cat([standing, standing.transpose(2, 3)])
        noise = torch.randn(num_images, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
        self.images = clean[self.labels] + 1.5 * noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        return (augmented(image) if self.augment else image), self.labels[index]


def augmented(image: torch.Tensor) -> torch.Tensor:
    """Shift, mirror and fade, each by the random stream that some library would use."""
    image = image.roll((random.randint(-3, 3), random.randint(-3, 3)), dims=(1, 2))
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    return image * float(np.random.uniform(0.7, 1.3))


def make_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * (SIZE // 4) ** 2, NUM_CLASSES)),
    )


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return correct / len(loader.dataset)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="the folder of the run's checkpoints")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=20, help="batches from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    # Workers have random streams that no checkpoint can reach; so each sample is given streams of its own.
    images = segue.SeededSamples(Stripes(args.images, seed=1, augment=True), seed=0)
    data = segue.DataPosition(
        StatefulDataLoader(images, batch_size=args.batch, shuffle=True, num_workers=args.workers)
    )
    validation = DataLoader(Stripes(512, seed=2), batch_size=128)
    model = make_model()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=args.epochs * len(data))

    training = segue.Training(model, optimizer, scheduler, components={"average": average, "data": data})
    with segue.Checkpointer(
        training, args.run, every_microbatches=args.save_every, keep_last=3
    ) as checkpointer:
        state = checkpointer.resume(default={"losses": [], "accuracies": []})
        print(f"from batch {len(state['losses'])} on")
        while data.epoch < args.epochs:
            model.train()
            for batch, labels in data:
                loss = nn.functional.cross_entropy(model(batch), labels, label_smoothing=0.1)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                average.update_parameters(model)
                state["losses"].append(loss.item())
                if checkpointer.save_if_due(state):
                    raise SystemExit("preempted; the same command goes on")
            state["accuracies"].append(accuracy(average, validation))
            print(
                f"epoch {data.epoch}: loss {state['losses'][-1]:.4f}, accuracy {state['accuracies'][-1]:.3f}"
            )
        checkpointer.save(state)  # the end itself

    objects = {"model": model, "average": average, "optimizer": optimizer, "scheduler": scheduler}
    end = {name: value.state_dict() for name, value in objects.items()}
    streams = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    print("digest", digest([state, end, streams]))


if __name__ == "__main__":
    main()
