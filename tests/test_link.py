from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import LinkError
from adapter.runtime.link import FRAME_LIMIT_BYTES, Frame, FrameReader

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
heads = st.dictionaries(st.text().filter(lambda name: name != "kind"), scalars, max_size=4)
frames = st.builds(Frame, st.text(min_size=1), heads, st.binary(max_size=200))


@given(st.lists(frames, max_size=5), st.data())
def test_frames_come_back_however_the_bytes_are_cut(sent: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(frame.encode() for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    reader = FrameReader()
    found = [
        frame
        for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True)
        for frame in reader.feed(wire[start:stop])
    ]
    assert found == sent


def test_a_body_passes_unread() -> None:
    body = b"\x00\xff not JSON \n"
    (frame,) = FrameReader().feed(Frame("invoke", {"id": "1", "deadline": None}, body).encode())
    assert (frame.kind, frame.head, frame.body) == ("invoke", {"id": "1", "deadline": None}, body)


def test_an_incomplete_frame_waits_for_the_rest() -> None:
    wire = Frame("hello", {"pid": 1}).encode()
    reader = FrameReader()
    assert list(reader.feed(wire[:-1])) == []
    assert [frame.kind for frame in reader.feed(wire[-1:])] == ["hello"]


def test_a_memoryview_is_taken_too() -> None:
    assert [frame.kind for frame in FrameReader().feed(memoryview(Frame("end", {}).encode()))] == ["end"]


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(struct.pack(">II", FRAME_LIMIT_BYTES + 1, 2) + b"{}", id="longer than any frame"),
        pytest.param(struct.pack(">II", 6, 3) + b"{}", id="head longer than the frame"),
        pytest.param(struct.pack(">II", 0, 0), id="no room for the head's length"),
        pytest.param(struct.pack(">II", 6, 2) + b"{]", id="head is no JSON"),
        pytest.param(struct.pack(">II", 6, 2) + b"[]", id="head is no object"),
        pytest.param(struct.pack(">II", 6, 2) + b"{}", id="no kind"),
        pytest.param(struct.pack(">II", 6, 2) + b"\xff\xff", id="head is no UTF-8"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
    ],
)
def test_what_is_no_frame_is_refused(wire: bytes) -> None:
    with pytest.raises(LinkError):
        list(FrameReader().feed(wire))


def test_a_frame_is_what_the_table_says() -> None:
    wire = Frame("result", {"id": "a"}, b"[1]").encode()
    total, head = struct.unpack_from(">II", wire)
    assert total == len(wire) - 4
    assert json.loads(wire[8 : 8 + head]) == {"kind": "result", "id": "a"}
    assert wire[8 + head :] == b"[1]"
