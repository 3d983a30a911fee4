"""What is made of a replica's words."""

from __future__ import annotations

import pytest

from adapter.emulator.replica_process import without_report
from adapter.init_report import init_report

REPORT = init_report(()).to_json()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (REPORT, ""),
        (f"{REPORT}a word", "a word"),
        (f"a word{REPORT}", "a word"),
        (f"one{REPORT}two", "onetwo"),
        ('{"kind": "mine"}', '{"kind": "mine"}'),
        ('{"kind":"mine"}', '{"kind":"mine"}'),
        ('{"kind":', '{"kind":'),
        ("a word", "a word"),
    ],
)
def test_a_report_among_the_words_of_user_code_is_taken_out_alone(line: str, said: str) -> None:
    assert without_report(line) == said
