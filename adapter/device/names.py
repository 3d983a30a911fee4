"""Names of tensors, in the checkpoint and in the model: how one becomes the other, and what does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Self

from adapter.errors import AdapterError, MissingTensor, TensorMismatch

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """How the tensors that a model wants differ from those that a checkpoint holds; all under the model's names."""

    wanted: tuple[str, ...]
    held: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """Name → shape in the checkpoint, shape in the model."""
    computed: frozenset[str] = frozenset()
    """Buffers that the model computes and never saves: a checkpoint that holds them is of an older model."""

    @property
    def fits(self) -> bool:
        """Whether there is none."""
        return not (self.missing or self.unexpected or self.misshapen)

    @property
    def nothing_fits(self) -> bool:
        """Whether not one name of the checkpoint is in the model although it wants some."""
        return bool(self.wanted) and len(self.unexpected) == len(self.held)

    def with_verdict(self, missing: Iterable[str], unexpected: Iterable[str]) -> Self:
        """The same with what `load_state_dict` said after the module's own hooks had a say."""
        return replace(self, missing=tuple(missing), unexpected=tuple(unexpected), misshapen={})

    def text(self) -> str:
        """One sentence or two: counts, a few examples, and what may help."""
        said = [f"the model wants {len(self.wanted)} tensors, the checkpoint holds {len(self.held)}"]
        if self.missing:
            said.append(f"{len(self.missing)} missing from the checkpoint: {examples(self.missing)}")
        if self.unexpected:
            said.append(
                f"{len(self.unexpected)} in the checkpoint that the model does not have: {examples(self.unexpected)}"
            )
        if self.misshapen:
            shapes = [
                f"{n} {list(held)} in the checkpoint, {list(want)} in the model"
                for n, (held, want) in self.misshapen.items()
            ]
            said.append(f"{len(shapes)} of another shape: {examples(shapes)}")
        hint = prefix_hint(self.missing, self.unexpected) or self._ignore_hint()
        return "; ".join(said) + (f". {hint}" if hint else "")

    def _ignore_hint(self) -> str | None:
        needless = [name for name in self.unexpected if name in self.computed]
        if not needless:
            return None
        return f"The model computes {examples(needless)} itself: name them in `ignore`"


def mismatch_error(found: Difference) -> AdapterError:
    """The error for a difference that cannot be accepted."""
    kind = MissingTensor if found.missing and not found.misshapen else TensorMismatch
    first = next(iter((*found.misshapen, *found.missing, *found.unexpected)), None)
    return kind(
        found.text(),
        tensor=first,
        missing=len(found.missing),
        unexpected=len(found.unexpected),
        misshapen=len(found.misshapen),
    )


def model_names(
    file_names: Iterable[str], prefix: str | Mapping[str, str] | None, ignore: Collection[str] = ()
) -> dict[str, str]:
    """Name in the model → name in the checkpoint, in the order given.

    Args:
        file_names: Names in the checkpoint.
        prefix: What they begin with and the model's do not (`"module."`), or a map from what they begin with to what
            the model's names begin with in its place; the longest that fits counts, other names stay as they are.
        ignore: Names in the checkpoint that are left out; shell patterns (`*.inv_freq`).

    Raises:
        TensorMismatch: Two names become one.
    """
    changes = {prefix: ""} if isinstance(prefix, str) else dict(prefix or {})
    longest_first = sorted(changes, key=len, reverse=True)
    exact = frozenset(ignore)
    patterns = [pattern for pattern in ignore if any(sign in pattern for sign in "*?[")]
    found: dict[str, str] = {}
    for name in file_names:
        if name in exact or any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        begin = next((begin for begin in longest_first if name.startswith(begin)), None)
        new = name if begin is None else changes[begin] + name[len(begin) :]
        if new in found:
            raise TensorMismatch(
                f"with this prefix map {found[new]!r} and {name!r} would both become {new!r}", tensor=name
            )
        found[new] = name
    return found


def prefix_hint(missing: Iterable[str], unexpected: Iterable[str]) -> str | None:
    """Advice where names differ by what they begin with; None where that explains nothing."""
    wanted, held = frozenset(missing), frozenset(unexpected)
    surplus = Counter(begin for name in held for begin in _beginnings(name) if name[len(begin) :] in wanted)
    lacking = Counter(begin for name in wanted for begin in _beginnings(name) if name[len(begin) :] in held)
    if surplus and (not lacking or surplus.most_common(1)[0][1] >= lacking.most_common(1)[0][1]):
        begin, count = surplus.most_common(1)[0]
        return f"Names in the checkpoint begin with {begin!r}: prefix={begin!r} would match {count} of them"
    if lacking:
        begin, count = lacking.most_common(1)[0]
        return f"Names in the model begin with {begin!r}: prefix={{'': {begin!r}}} would match {count} of them"
    return None


def examples(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    all_names = list(names)
    more = f", … ({len(all_names) - _EXAMPLES} more)" if len(all_names) > _EXAMPLES else ""
    return ", ".join(all_names[:_EXAMPLES]) + more


def _beginnings(name: str) -> list[str]:
    return [name[: at + 1] for at, sign in enumerate(name) if sign == "."]
