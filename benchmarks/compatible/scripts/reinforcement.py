"""Learning from recorded steps of an environment."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.compatible.table import SAMPLES, Samples, generator, script


def replay():
    states = torch.randn(SAMPLES, 4, generator=generator())
    actions = torch.randint(0, 3, (SAMPLES,), generator=generator())
    following = states + 0.1 * torch.randn(SAMPLES, 4, generator=generator(2))
    rewards = (states.argmax(1) == actions).float()
    return Samples(states, actions, rewards, following, (torch.arange(SAMPLES) % 9 == 8).float())


class QNetworks(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy_net, self.target_net = self.network(), self.network()
        self.target_net.load_state_dict(self.policy_net.state_dict())

    def network(self):
        return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


@script(common=3, quick=True)
class Dqn:
    """A target network that is not frozen, only left out of the optimizer, and copied every third step."""

    def create_model(self):
        return QNetworks()

    def create_data(self):
        return DataLoader(replay(), batch_size=16, shuffle=True)

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.policy_net.parameters(), lr=1e-3, amsgrad=True)

    def loss(self, model, batch, step):
        states, actions, rewards, following, done = batch
        if step % 3 == 0:
            model.target_net.load_state_dict(model.policy_net.state_dict())
        q = model.policy_net(states).gather(1, actions[:, None])[:, 0]
        with torch.no_grad():
            target = rewards + 0.99 * (1 - done) * model.target_net(following).max(1).values
        return F.smooth_l1_loss(q, target)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 32), nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, states):
        features = self.body(states).tanh()
        return Categorical(logits=self.actor(features)), self.critic(features)[:, 0]


def rollouts():
    states, actions, rewards, *_ = zip(*replay().samples)
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0) / SAMPLES
    return Samples(states, actions, torch.full((SAMPLES,), 1 / 3).log(), (returns - returns.mean()) / returns.std())


@script(common=2, settings={"clip_norm": 0.5})
class Ppo:
    """Clipped ratios, a value function and an entropy bonus; advantages were normalised over the whole rollout."""

    def create_model(self):
        return ActorCritic()

    def create_data(self):
        return DataLoader(rollouts(), batch_size=16, shuffle=True)

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=2.5e-3, eps=1e-5)

    def loss(self, model, batch):
        states, actions, old_log_probs, returns = batch
        policy, values = model(states)
        advantages = self.advantages(returns - values.detach())
        ratio = (policy.log_prob(actions) - old_log_probs).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return -surrogate.mean() + 0.5 * F.mse_loss(values, returns) - 0.01 * policy.entropy().mean()

    def advantages(self, found):
        return found


@script(common=2, refused=("parts do not add up", "unit="))
class PpoByMinibatch(Ppo):
    """The same with advantages that each minibatch normalises: samples that belong together."""

    def advantages(self, found):
        return (found - found.mean()) / (found.std() + 1e-8)
