"""Incremental ridge regression on random features: the linear baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.estimators import closed_form
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class RidgeSettings(Settings):
    features: int = setting(2000, "random hidden neurons")
    spread: float = setting(1.0, "size of their weights")
    aperture: float = setting(10.0, "of the conceptors: larger protects more")
    regularization: float = setting(1e-2, "of the ridge regression")
    solution: str = setting(
        "simplified", "exact: as in section 2.2 of the paper", choices=("exact", "simplified")
    )


class ConceptorRidgeMethod(Learner):
    """Random, fixed hidden neurons; section 2.2 of the paper on top of them. No gradients."""

    name: ClassVar[str] = "conceptor-ridge"
    about: ClassVar[str] = "incremental ridge regression by conceptors on random features"
    settings_type: ClassVar[type[Settings]] = RidgeSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s = self.settings
        if len(self.scenario.inputs) == 3:
            raise ValueError("conceptor-ridge works on flat inputs, not on colour images")
        inputs = self.scenario.inputs[0]
        drawn = []
        for seed in self.seeds:
            generator = torch.Generator().manual_seed(15_485_863 + seed)
            block = torch.randn(s.features, inputs + 1, generator=generator)
            drawn.append(block * s.spread / inputs**0.5)
        self.random = torch.stack(drawn).to(self.device)
        size = s.features + 1
        shape = (len(self.seeds), size, size)
        self.total = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self.weights = torch.zeros(
            len(self.seeds), self.scenario.classes, size, dtype=torch.float64, device=self.device
        )
        self.model = _Readout(self)

    def learn(self, number: int) -> list[dict[str, Any]]:
        s = self.settings
        split = self.scenario.tasks[number].train
        correlation, cross = torch.zeros_like(self.total), torch.zeros_like(self.weights)
        count = min(split.sizes())
        for start in range(0, count, 1000):
            places = torch.arange(start, min(start + 1000, count), device=self.device)
            x, y = split.take(places.expand(len(self.seeds), -1))
            b = self.features(x)
            correlation += b.mT @ b / count
            wanted = torch.nn.functional.one_hot(y, self.scenario.classes).to(b)
            cross += wanted.mT @ b / count
        solve = closed_form.increment if s.solution == "exact" else closed_form.simplified_increment
        for i in range(len(self.seeds)):
            free = closed_form.free_space(self.total[i], s.aperture)
            change = solve(correlation[i], cross[i], self.weights[i], free, s.regularization)
            self.weights[i] += change
        self.total += correlation
        for i, extra in enumerate(self.extras):
            quota = 1 - closed_form.free_space(self.total[i], s.aperture).diagonal().mean()
            extra.setdefault("quota", {}).setdefault("features", []).append(float(quota))
        return [{"task": number, "step": [], "loss": [], "validation": []} for _ in self.seeds]

    def features(self, x: Tensor) -> Tensor:
        """[h; 1] `[seeds, n, features + 1]` in float64."""
        x = x.flatten(2)
        hidden = torch.tanh(x @ self.random[..., :-1].mT + self.random[..., None, :, -1])
        return torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1).double()


class _Readout(torch.nn.Module):
    """The linear model as a module, so that it is tested like the others."""

    def __init__(self, method: ConceptorRidgeMethod) -> None:
        super().__init__()
        self._method = [method]

    def forward(self, x: Tensor) -> Tensor:
        method = self._method[0]
        return method.features(x) @ method.weights.mT
