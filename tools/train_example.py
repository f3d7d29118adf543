"""Train a small GPT on the source code of Python itself, with castore keeping its checkpoints.

    python tools/train_example.py runs.castore

Stop it at any moment, however you like, and run it again: it goes on from the newest checkpoint as
if nothing had happened, to the last bit of the loss.  What that takes is in two functions:
``snapshot`` gathers *everything* that the next step depends on, ``restore`` puts it back.
"""

import argparse
import math
import os
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import castore

VOCABULARY = 256  # a token is a byte


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each with dropout and a way around it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        drop = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
        x = x + F.dropout(self.out(attended.transpose(1, 2).flatten(2)), drop)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer over bytes, its output layer tied to its embedding."""

    def __init__(self, width: int, layers: int, heads: int, block: int, dropout: float) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight  # a tie: castore stores it once and gives it back tied

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, length) tokens to (batch, length, vocabulary) logits."""
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Batches:
    """Shuffled windows of the text, each moved a little at random.  Knows where it stands."""

    def __init__(self, text: bytes, block: int, batch: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.block, self.batch, self.epoch, self.index = block, batch, -1, 0
        self.order = torch.empty(0, dtype=torch.int64)

    def start_epoch(self, epoch: int) -> None:
        """Shuffle: the order is a function of the epoch's number alone."""
        windows = len(self.text) // self.block - 2  # room for a window to move in
        generator = torch.Generator().manual_seed(epoch)
        self.order, self.epoch, self.index = torch.randperm(windows, generator=generator), epoch, 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch: tokens, and the token that follows each."""
        if self.index + self.batch > len(self.order):
            self.start_epoch(self.epoch + 1)
        chosen = self.order[self.index : self.index + self.batch].tolist()
        self.index += self.batch
        starts = (window * self.block + random.randrange(self.block) for window in chosen)
        rows = torch.stack([self.text[s : s + self.block + 1] for s in starts]).long()
        return rows[:, :-1], rows[:, 1:]


class Run:
    """A training run: all that changes as it goes."""

    def __init__(self, args: argparse.Namespace) -> None:
        size = {"block": 32, "width": 64, "layers": 3} if args.small else {}
        size = {"block": 128, "width": 256, "layers": 5, **size}
        self.stage = "fine-tune" if args.fine_tune else "pre-train"
        self.step, self.loss = 0, math.nan
        self.model = GPT(**size, heads=4, dropout=0.1)
        if args.fine_tune:  # all but the last block stay as they are
            self.model.requires_grad_(False)
            self.model.blocks[-1].requires_grad_(True)
        learned = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(learned, lr=1e-3, weight_decay=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: (
                min(1.0, (step + 1) / 10) * (1 + math.cos(math.pi * step / args.steps)) / 2
            ),
        )
        # Python's library to learn from; one package of it to fine-tune on.
        library = Path(os.__file__).parent / ("asyncio" if args.fine_tune else "")
        sources = sorted(library.glob("*.py"))
        text = b"\n".join(source.read_bytes() for source in sources)
        self.batches = Batches(text, size["block"], batch=4)

    def snapshot(self) -> dict:
        """Everything that the next step depends on.  Forget one of these, and it is another run."""
        return {
            "stage": self.stage,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "data": {"epoch": self.batches.epoch, "index": self.batches.index},
            "rng": {"torch": torch.get_rng_state(), "python": random.getstate()},
        }

    def restore(self, state: dict, *, forget_rng: bool = False) -> None:
        """Put a snapshot back; from another stage only what it learned."""
        self.model.load_state_dict(state["model"])
        if state["stage"] != self.stage:
            return
        self.step = state["step"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.batches.start_epoch(state["data"]["epoch"])
        self.batches.index = state["data"]["index"]
        if not forget_rng:
            torch.set_rng_state(state["rng"]["torch"])
            random.setstate(state["rng"]["python"])

    def train_step(self) -> None:
        """One step of AdamW."""
        tokens, following = self.batches.next()
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1), following.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.step, self.loss = self.step + 1, loss.item()


def main() -> None:
    """Train, saving every few steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="the folder that keeps the checkpoints; made if absent")
    parser.add_argument("--branch", default="main", help="a run is a branch (default: main)")
    parser.add_argument("--rev", help="resume from this revision (default: the branch's head)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stop-at", type=int, help="stop early, at this step, without a save")
    parser.add_argument("--save-every", type=int, default=5, help="0: save nothing")
    parser.add_argument("--fine-tune", action="store_true", help="train the last block only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a toy model, for tests")
    parser.add_argument("--forget-rng", action="store_true", help="resume wrongly: the control")
    args = parser.parse_args()

    # Same inputs, same bits: a fixed number of threads, and only algorithms that keep their order.
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    random.seed(1)

    run = Run(args)
    # Chunks are what is stored once, checked and named as a whole: 4 MiB unless told otherwise. The
    # largest tensor here is 1 MiB, so smaller ones show more.
    store = castore.open(args.store, create=True, chunk_size=2**14 if args.small else 2**18)
    if args.rev or args.branch in store.branches():
        run.restore(store.load(args.rev or args.branch), forget_rng=args.forget_rng)
        print(f"resumed from {args.rev or args.branch} at step {run.step}", flush=True)
    else:
        weights = sum(p.numel() for p in run.model.parameters())
        print(f"new run: {weights:,} weights, {len(run.batches.text):,} bytes of text", flush=True)

    while run.step < (args.stop_at or args.steps):
        run.train_step()
        print(f"step {run.step} loss {run.loss:.6f} {run.loss.hex()}", flush=True)
        if args.save_every and run.step % args.save_every == 0:
            meta = {"loss": run.loss, "stage": run.stage}
            saved = store.save(run.snapshot(), branch=args.branch, step=run.step, meta=meta)
            cost = saved.report
            print(
                f"saved step {run.step} on {args.branch}: {cost.logical_bytes:,} bytes of state, "
                f"{cost.new_bytes:,} of them new, {cost.seconds:.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
