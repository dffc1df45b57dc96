"""Pages in memory: never over the cap, what was used last stays."""

from __future__ import annotations

from localllm.engine.kv_pages import Page, page_name
from localllm.engine.ram_tier import RamTier


def page(parent: bytes, *tokens: int, depth: int = 0) -> Page:
    return Page(page_name(parent, tokens), parent, tokens, depth)


def test_the_cap_and_the_order() -> None:
    tier = RamTier(300)
    pages = [page(b"", i) for i in range(4)]
    for each in pages[:3]:
        tier.put(each, 0, b"x" * 100)
    tier.touch([pages[0].name, pages[1].name])  # of these, the first one stays longest
    tier.put(pages[3], 0, b"y" * 100)
    tier.put(pages[3], 1, b"z" * 50)
    assert tier.n_bytes == 250
    assert [tier.get(each.name, 0) is not None for each in pages] == [True, False, False, True]
    assert tier.index.get(pages[1].name) is None
    tier.put(pages[3], 1, b"z" * 50)
    tier.put(pages[1], 0, b"x" * 301)
    assert tier.n_bytes == 250 and len(tier.index) == 2
    tier.clear()
    assert tier.n_bytes == len(tier.index) == 0


def test_a_longer_end_takes_the_place_of_a_shorter() -> None:
    tier = RamTier(1000)
    for tokens in ((1, 2), (1, 3), (1, 2, 4)):
        tier.put(page(b"", *tokens), 0, b"x")
    assert {each.tokens for each in tier.index} == {(1, 3), (1, 2, 4)} and tier.n_bytes == 2
