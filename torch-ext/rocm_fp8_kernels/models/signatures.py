"""The forwards of transformers' modules that the fused ones stand in for: their parameters, and a call's arguments.

transformers renames parameters: the cache of layers and attentions is `past_key_values` up to 5.23, `cache` from 5.24
on. Its forwards end with **kwargs, so an argument by a name that a fused forward does not know would be lost without
a word. That is why the parameters are compared when a fused class is made.
"""

import inspect

import torch

__all__ = ["CACHE", "cached", "named", "parameters", "pop_cache"]

CACHE = "cache"
_CACHES = (CACHE, "past_key_values")
TRIED = "5.16 to 5.24"


def parameters(
    own: type, known: tuple[str, ...], optional: tuple[str, ...] = (), *, keywords: bool = True
) -> tuple[str, ...]:
    """Names of the parameters of `own.forward` after self and the first, in their order.

    Args:
        known: those that a fused forward takes, the first included; CACHE stands for any of its names.
        optional: those of `known` that **kwargs may bring instead.
        keywords: whether **kwargs follow.

    Raises: RuntimeError that names transformers' version, where own.forward has others, or lacks one.
    """
    given = list(inspect.signature(own.forward).parameters.values())[1:]
    plain = [each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD]
    others = [each.kind for each in given if each.kind is not each.POSITIONAL_OR_KEYWORD]
    roles = [CACHE if name in _CACHES else name for name in plain]
    wanted = [inspect.Parameter.VAR_KEYWORD] if keywords else []
    known = tuple(name for name in known if name in roles or name not in optional)
    if roles[:1] != [known[0]] or sorted(roles) != sorted(known) or others != wanted:
        import transformers

        raise RuntimeError(
            f"transformers {transformers.__version__}: {own.__name__}.forward takes"
            f" ({', '.join(str(each).split(':')[0] for each in given)}), and its fused form"
            f" ({', '.join(known)}{', **kwargs' if keywords else ''}); transformers {TRIED} was tried"
        )
    return tuple(plain[1:])


def named(names: tuple[str, ...], args: tuple, kwargs: dict) -> dict:
    """The arguments of a call after the first, by the names of `parameters`; the cache may have been given by any.

    Raises: TypeError for one too many, and for one that is given twice.
    """
    if len(args) > len(names):
        raise TypeError(f"forward() takes at most {len(names) + 1} positional arguments; {len(args) + 1} were given")
    found = dict(zip(names, args))
    for name, value in kwargs.items():
        if name in _CACHES:
            name = next(each for each in names if each in _CACHES)
        if name in found:
            raise TypeError(f"forward() got more than one value for the argument {name!r}")
        found[name] = value
    return found


def cached(arguments: dict, key: torch.Tensor, value: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """key and value, after the cache among `arguments`, if there is one, has taken them. It is taken out of there."""
    for name in _CACHES:
        cache = arguments.pop(name, None)
        if cache is not None:
            # Where it is called `cache`, transformers hands on what the attention was given.
            more = {"kwargs": arguments} if name == CACHE else {}
            return cache.update(key, value, layer, **more)
    return key, value


def pop_cache(arguments: dict, kind: type):
    """The cache among `arguments`, taken out of there, if it is of this kind; else None."""
    for name in _CACHES:
        if isinstance(arguments.get(name), kind):
            return arguments.pop(name)
    return None
