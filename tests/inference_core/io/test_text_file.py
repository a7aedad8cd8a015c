"""Files that people write: a byte order mark is no part of the text, and another encoding is named."""

from pathlib import Path

import pytest

from inference_core.io.files import NotUtf8Error, read_text_file


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_text_comes_without_its_byte_order_mark(mark: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(mark + "name = 'é'\r\nnext\r".encode())
    assert read_text_file(file) == "name = 'é'\nnext\n"


def test_another_encoding_is_an_error_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes("one\ntwo\ncafé\n".encode("latin-1"))
    with pytest.raises(NotUtf8Error) as refused:
        read_text_file(file)
    assert str(refused.value) == "it is not UTF-8: byte 0xe9 in line 3; save it as UTF-8"
    assert refused.value.filename == str(file)
