from __future__ import annotations

from typing import Any

import pytest

from adapter.errors import ConfigurationError
from adapter.testing import Emulator


@pytest.mark.parametrize("option", ["max_replica", "idle", "port"])
def test_an_option_that_is_none_is_refused(option: str) -> None:
    given: dict[str, Any] = {option: 1}
    with pytest.raises(ConfigurationError, match=f"no such option: {option}; there are weights, .*max_replicas"):
        Emulator("kit_handlers:echo", **given)
