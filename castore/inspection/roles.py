"""What part a value plays in training, as far as its key path tells.  Pure.

Nothing in a state says it, so it is read off the words of the path, and this is the rule.  A path's
components are looked at from the root on, and the first one that has a telling word decides (words
end at whatever is no letter, or where small letters turn into capitals):

* ``rng``: rng, rngs, random, seed, seeds, generator; any ``torch.Generator``, too;
* ``optimizer``: optimizer, optimizers, optim, opt, adam, adamw, sgd, and the names that optimizers
  give what they keep: exp_avg, exp_avg_sq, max_exp_avg_sq, momentum_buffer, square_avg;
* ``weights``: model, models, module, network, net, weights, weight, params, parameters, ema,
  state_dict, bias, running_mean, running_var, encoder, decoder, embedding, lora;
* a tensor saved as a ``Parameter`` counts as ``weights`` where no word tells;
* ``other`` is what is left.

So 32-bit master weights that an optimizer keeps count as the optimizer's.
"""

from __future__ import annotations

import re

__all__ = ["ROLES", "role_of"]

ROLES = ("weights", "optimizer", "rng", "other")

_WORDS = {
    "rng": "rng rngs random seed seeds generator",
    "optimizer": "optimizer optimizers optim opt adam adamw sgd",
    "weights": "model models module network net weights weight params parameters ema bias encoder "
    "decoder embedding lora",
}
_ROLE_OF_WORD = {word: role for role, words in _WORDS.items() for word in words.split()}
_ROLE_OF_NAME = {
    **dict.fromkeys(
        ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg"),
        "optimizer",
    ),
    **dict.fromkeys(("state_dict", "running_mean", "running_var"), "weights"),
}
_SPLIT = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")


def role_of(path: str, *, kind: str = "tensor", parameter: bool = False) -> str:
    """The role of the value at a key path.

    Args:
        path: the key path.
        kind: the value's kind.
        parameter: whether it was saved as a ``torch.nn.Parameter``.
    """
    if kind == "torch.Generator":
        return "rng"
    for component in path.split("/"):
        name = component.lower()
        if name in _ROLE_OF_NAME:
            return _ROLE_OF_NAME[name]
        for word in _SPLIT.split(component):
            role = _ROLE_OF_WORD.get(word.lower())
            if role is not None:
                return role
    return "weights" if parameter else "other"
