"""Random texts for tokenizer tests: prose, code, many scripts, combining marks, runs of spaces and
digits, contractions, special tokens' names and pieces of them."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Sequence

# Blocks as (first, last); the share of unassigned code points in them is small.
_BLOCKS = (
    *((0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2AF), (0x300, 0x36F), (0x370, 0x3FF)),
    *((0x400, 0x4FF), (0x531, 0x58A), (0x590, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F)),
    *((0x980, 0x9FE), (0xA01, 0xA76), (0xB82, 0xBFA), (0xE01, 0xE5B), (0x1000, 0x109F)),
    *((0x10A0, 0x10FF), (0x1100, 0x11FF), (0x13A0, 0x13FD), (0x1E00, 0x1EFF), (0x1F00, 0x1FFE)),
    *((0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20BF), (0x2150, 0x218B), (0x2190, 0x21FF)),
    *((0x2200, 0x22FF), (0x2460, 0x24FF), (0x2580, 0x259F), (0x2600, 0x26FF), (0x3000, 0x303F)),
    *((0x3041, 0x30FF), (0x3131, 0x318E), (0x3400, 0x34FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3)),
    *((0xF900, 0xFA6D), (0xFE30, 0xFE4F), (0xFF01, 0xFFEE), (0x10400, 0x1044F), (0x1F300, 0x1F6C5)),
    *((0x1F900, 0x1F9FF), (0x20000, 0x200FF)),
)
_WORD_LIST = (
    "the of and to in is it you that he was for on are with as I his they be at one have this "
    "from or had by not but what all were when we there can an your which their said if do will "
    "each about how up out them then she many some so these would other into has more her two "
    "like him see time could no make than first been its who now people my made over did down "
    "only way find use may water long little very after words called just where most know "
    "internationalization DNS HTTPServer snake_case camelCase x86_64 étude naïve straße Ünïcode "
    "Привет мир 你好 世界 こんにちは 안녕하세요 مرحبا שלום नमस्ते สวัสดี ಠ_ಠ"
)
_WORDS = _WORD_LIST.split(" ")
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'", "’s", "n't")
_SPACES = (" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u2003", "▁")
_CODE = (
    "def f(x):\n    return x**2\n",
    "for (int i = 0; i < n; ++i) {",
    "#include <stdio.h>",
    '{"key": [1, 2.5e-3, null]}',
    "<div class='a'>&nbsp;</div>",
    "SELECT * FROM t WHERE a != 'b';",
    "https://example.org/a?b=c&d=%20#e",
    "```python\n",
    "== != <= >= -> => :: ... --- ___ *** /* */ //",
    "\\n\\t\\u0041 $HOME ${x} @a #b ~/c",
)


def _block_text(rng: random.Random) -> str:
    first, last = rng.choice(_BLOCKS)
    chars = (chr(rng.randint(first, last)) for _ in range(rng.randint(1, 8)))
    return "".join(c for c in chars if unicodedata.category(c) not in ("Cn", "Cs"))


def _any_char(rng: random.Random) -> str:
    while True:
        c = chr(rng.randrange(1, sys.maxunicode + 1))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            return c


def _digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))


def random_text(rng: random.Random, specials: Sequence[str] = ()) -> str:
    """One text of up to about 30 parts. `specials`: names that are strewn in, whole and cut."""
    parts: list[str] = []
    for _ in range(rng.choice((1, 2, 3, 5, 8, 13, 30))):
        pick = rng.random()
        if pick < 0.35:
            parts.append(rng.choice(("", " ")) + rng.choice(_WORDS))
        elif pick < 0.45:
            parts.append(rng.choice(_CONTRACTIONS))
        elif pick < 0.55:
            parts.append(rng.choice(_SPACES) * rng.choice((1, 1, 2, 5)))
        elif pick < 0.62:
            parts.append(_digits(rng))
        elif pick < 0.67:
            parts.append(rng.choice(_CODE))
        elif pick < 0.72:
            parts.append(
                "".join(rng.choice("!?.,;:-_()[]{}<>|&%$#@*+=/\\^~`'\"") for _ in range(4))
            )
        elif pick < 0.75:
            parts.append(rng.choice(_WORDS).upper() + rng.choice(_WORDS).title())
        elif pick < 0.78 and specials:
            special = rng.choice(specials)
            cut = rng.randint(0, len(special)) if rng.random() < 0.3 else len(special)
            parts.append(special[:cut])
        elif pick < 0.80:
            parts.append(_any_char(rng))
        else:
            parts.append(_block_text(rng))
    return "".join(parts)
