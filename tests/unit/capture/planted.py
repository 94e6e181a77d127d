"""Samples and a draft with known proposals, for tests that count."""

from types import SimpleNamespace

import torch

from wiring.checkpoints.states import StateSample

VOCAB, WIDTH = 13, 6
HEAD = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(9))


def random_samples(lengths, seed=0):
    """Ragged samples with holes in their masks; slot 0 of the state at row t holds (sample, t), for NoisyDraft."""
    g = torch.Generator().manual_seed(seed)
    samples = []
    for i, n in enumerate(lengths):
        states = torch.zeros(n, 1, 2)
        states[:, 0, 0], states[:, 0, 1] = i, torch.arange(n)
        samples.append(
            StateSample(
                source=f"sample {i}",
                tokens=torch.randint(0, VOCAB, (n,), generator=g),
                loss_mask=(torch.rand(n, generator=g) < 0.7).long(),
                states=states,
                boundaries=(0,),
                last_hidden=torch.randn(n, WIDTH, generator=g),
            )
        )
    return samples


class NoisyDraft:
    """Proposes the target's choice about half the time, decided by (sample, row, step); else a random draft id."""

    def __init__(self, samples, kept, head):
        self.target_ids = torch.tensor(list(kept))
        self.config = SimpleNamespace(vocab_size=VOCAB)
        self.fc = SimpleNamespace(weight=torch.zeros(1))
        self._plans = {}
        g = torch.Generator().manual_seed(4)
        for i, sample in enumerate(samples):
            best = (sample.last_hidden @ head[self.target_ids].T).argmax(-1)
            for k in range(8):
                right = torch.cat([best[1 + k :], torch.zeros(min(1 + k, len(best)), dtype=torch.int64)])
                other = torch.randint(0, len(self.target_ids), right.shape, generator=g)
                self._plans[i, k] = torch.where(torch.rand(right.shape, generator=g) < 0.6, right, other)

    def plan(self, sample, k):
        """Proposed draft ids [N] of step k, by row."""
        return self._plans[int(sample.states[0, 0, 0]), k]

    def to_target_ids(self, ids):
        return self.target_ids[ids]

    def hidden_steps(self, tokens, states, steps, keep=None):
        for k in range(steps):
            yield torch.stack(
                [states[:, :-1, 0, 0], states[:, :-1, 0, 1], torch.full(states[:, :-1, 0, 0].shape, k)], -1
            )

    def logits(self, rows):
        ids = torch.tensor([int(self._plans[int(i), int(k)][int(t)]) for i, t, k in rows.long()], dtype=torch.int64)
        return torch.nn.functional.one_hot(ids, len(self.target_ids)).float()
