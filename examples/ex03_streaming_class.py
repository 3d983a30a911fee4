"""A class as a handler, and an answer that is streamed word by word.

    cd examples && coldstart serve ex03_streaming_class:write
    curl -N localhost:8080 -d '{"start": "the", "words": 12}'

`load` runs once, before the replica is ready; each thing that `__call__` yields is a line for the caller at once. Here
the model is a table of which word may follow which, read from a text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from adapter import InvocationContext, coldstart_handler

TEXT = (
    "the cold start of a model is the wait for the weights and the weights come from the store while the process "
    "of the replica is still at the start of the wait for the framework"
)


class Writer:
    def load(self) -> None:
        words = TEXT.split()
        self.followers: dict[str, list[str]] = {}
        for word, following in zip(words, words[1:] + words[:1], strict=True):
            self.followers.setdefault(word, []).append(following)

    def __call__(self, event: dict[str, Any], context: InvocationContext) -> Iterator[dict[str, Any]]:
        chance = random.Random(event.get("seed", 0))
        word = event.get("start", "the")
        for position in range(event.get("words", 8)):
            context.raise_if_cancelled()  # the caller may be gone: no need to write on
            yield {"position": position, "word": word}
            word = chance.choice(self.followers.get(word, ["the"]))


# the same as @coldstart_handler above the class, written so that type checkers know what comes out
write = coldstart_handler(Writer)
write.warm_up({"start": "the", "words": 2})

if __name__ == "__main__":
    stream = write.bind(write.make_model())
    print(" ".join(item["word"] for item in stream({"words": 12})))
