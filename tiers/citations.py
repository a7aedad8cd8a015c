"""What an answer cites: addresses on the web, as servers that search there name them."""

import msgspec


class UrlCitation(msgspec.Struct, frozen=True):
    """A page that a part of the text rests on, from character `start_index` to `end_index` of the choice's text."""

    url: str
    title: str = ""
    start_index: int = 0
    end_index: int = 0
