"""Elastic DDP training with PyTorch: a small CNN learns to distinguish stripes from checks.

    python train.py                     one worker, without a server
    levada submit -f job.yaml           1 to 4 workers, resized in place
    torchrun --nproc-per-node 2 train.py

EPOCHS (3) is the number of passes over the data. STEP_SECONDS (0) is added to the time of every step. With
LEVADA_ELASTIC=0 a resize is a restart from the checkpoint.
"""

import os
import time

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("this example needs PyTorch: pip install torch") from None
from torch import nn

import levada.runtime.torch

EPOCHS = int(os.environ.get("EPOCHS", "3"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
IMAGES, BATCH, SEED = 1536, 24, 7


def make_data():
    """Return noisy images of stripes (0) and checks (1)."""
    noise = torch.Generator().manual_seed(SEED)
    lines = (torch.arange(16) // 2 % 2).float()
    stripes, checks = lines.expand(16, 16), (lines[:, None] + lines[None, :]) % 2
    labels = torch.randint(2, (IMAGES,), generator=noise)
    images = torch.stack([stripes, checks])[labels] + 3.0 * torch.randn(IMAGES, 16, 16, generator=noise)
    return torch.utils.data.TensorDataset(images[:, None], labels)


def main():
    """Train with any number of workers."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 2)
    )
    job = levada.runtime.torch.init()
    model = job.parallel(net.to(job.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    job.state(model=model, optimizer=optimizer)
    loader = job.loader(make_data(), batch_size=BATCH)

    for epoch in job.epochs(EPOCHS):
        for images, labels in job.steps(loader):
            with job.guard():
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(job.device)), labels.to(job.device))
                loss.backward()
                optimizer.step()
                time.sleep(STEP_SECONDS)
                if job.is_main and job.step % 8 == 0:
                    print(f"epoch {epoch} step {job.step + 1} loss {loss:.4f} workers {job.world_size}", flush=True)
    job.complete()
    if job.is_main:
        norm = sum(float(value.detach().pow(2).sum()) for value in model.parameters()) ** 0.5
        print(f"done after {job.step} steps, norm of the net {norm:.6f}", flush=True)


if __name__ == "__main__":
    main()
