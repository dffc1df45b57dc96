"""Every pre-tokenizer type (`tokenizer.ggml.pre`) that llama.cpp knows: how a text is cut before
byte-pair merging.

A row holds a list of regular expressions in Oniguruma syntax, applied one after another: matches
and the gaps between them are both kept, and the next expression sees each piece by itself.

A model was trained with its *publisher's* splitter. Where llama.cpp departs from it (its regex
engine folds Unicode classes, and four splitters are hand-written there) the row has a second
column, `llama_cpp`, that reproduces llama.cpp; the tokenizer takes the publisher's by default.

Source of the expressions: the publishers' tokenizer.json files and llama.cpp's src/llama-vocab.cpp
and src/unicode.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut a text before byte-pair merging."""

    name: str
    """The name of llama.cpp's LLAMA_VOCAB_PRE_TYPE_*, in lower case."""
    publisher: tuple[str, ...]
    llama_cpp: tuple[str, ...] | None = None
    """None: the same as the publisher's."""
    byte_level: bool = True
    """False: the pieces stay UTF-8 (with ▁ for the space) and unknown characters fall back to
    `<0xXX>` tokens."""
    drops_spaces: bool = False
    """True: what lies between the matches is thrown away."""

    def patterns(self, splitter: str) -> tuple[str, ...]:
        """The column for `splitter`, "publisher" or "llama.cpp"."""
        if splitter == "llama.cpp" and self.llama_cpp is not None:
            return self.llama_cpp
        return self.publisher


@dataclass(frozen=True)
class PreName:
    """What a value of `tokenizer.ggml.pre` means."""

    type: PreTokenizer
    ignore_merges: bool = False
    """A piece that is a token as it stands is taken whole, whatever the merges say."""
    add_bos: bool = False
    """Whether a text starts with the beginning-of-sequence token if the file does not say."""


_ENGLISH = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ASCII_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = _ENGLISH + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _llama3(contraction: str, digits: str = r"\p{N}{1,3}") -> str:
    return rf"{contraction}|{_WORD}|{digits}|{_SIGNS}|{_SPACES}"


def _jais2(contraction: str) -> str:
    runs = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    return (
        rf"{contraction}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+|{runs}|\s{{1,2}}(?!\S)|\s{{1}}"
    )


def _qwen35(contraction: str) -> str:
    return (
        rf"{contraction}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased(upper: str, lower: str, contraction: str, digits: str) -> str:
    """Words that end where lower case turns into upper case, as in GPT-4o's splitter."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{head}{upper}*{lower}+{contraction}|{head}{upper}+{lower}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER_ASCII = r"((?=[\p{L}])([^a-z]))"
_LOWER_ASCII = r"((?=[\p{L}])([^A-Z]))"
_LETTER_MARK = r"[\p{L}\p{M}]"

_CJK_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-Ჺ"
    "Ჽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝ"
    "ℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀"
    "-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_DEEPSEEK_SIGNS = "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"
# The last range of the signs and the middle one here hold spaces such as U+3000. llama.cpp turns
# every space into a vertical tab before it matches, so there the classes have no spaces.
_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_DEEPSEEK_SIGNS_NO_SPACE = "\\s?[!-/:-~！-／：-～‘-‟\u3000-。&&[^\\s]]+"
_DEEPSEEK_CJK_NO_SPACE = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}&&[^\s]]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"
_AFMOE_SCRIPTS = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}"
    r"\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
# Runs of digits cut into threes from the right: only the first group looks ahead, so that a long
# run costs no more than its length.
_DIGITS_FROM_RIGHT = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3}"
# llama.cpp's hand-written splitter leaves what stands before a run of digits in its first group.
_TEXT_AND_DIGITS = rf"\G\P{{N}}*+(?:{_DIGITS_FROM_RIGHT})"
# The publisher writes \d{1,3}(?=(?:\d{3})*\b), which takes quadratic time where a letter follows.
_DIGITS_BEFORE_BORDER = r"(?<!\d)\d{1,3}(?=(?:\d{3})*\b)|\G(?<=\d)\d{3}"
# The publisher writes \s+$, with quadratic time inside long runs of spaces.
_LAST_SPACES = r"(?<!\s)\s+$"
_KIMI_HEAD = r"[^\r\n\p{L}\p{N}]?"
_KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
# llama.cpp's list of Han blocks, which is not the Han script: it lacks the radicals and 々, and
# holds the compatibility blocks.
_LLAMA_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}"
    r"\x{2F800}-\x{2FA1F}"
)

_GPT4O = PreTokenizer(
    "gpt4o",
    (_cased(_UPPER, _LOWER, _ANY_CASE + "?", r"\p{N}{1,3}"),),
    (_cased(_UPPER_ASCII, _LOWER_ASCII, _ASCII_CASE + "?", r"\p{N}{1,3}"),),
)
_LLAMA3 = ((_llama3(_ANY_CASE),), (_llama3(_ASCII_CASE),))
_QWEN2 = ((_llama3(_ANY_CASE, r"\p{N}"),), (_llama3(_ASCII_CASE, r"\p{N}"),))
_STARCODER = (r"\p{N}", _GPT2)
_DEEPSEEK3_LLM = (r"\p{N}{1,3}", _CJK_KANA, rf"{_DEEPSEEK3}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}")
_AFMOE_WORDS = _DEEPSEEK3_LLM[-1]
_NEWLINES = (r"\n+",)

_ROWS = (
    PreTokenizer(
        "default",
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    PreTokenizer("llama3", *_LLAMA3),
    PreTokenizer("jais2", (_jais2(_ANY_CASE),), (_jais2(_ASCII_CASE),)),
    PreTokenizer("dbrx", *_LLAMA3),
    PreTokenizer("smaug", *_LLAMA3),
    PreTokenizer("chatglm4", *_LLAMA3),
    PreTokenizer(
        "deepseek_llm",
        (r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_SIGNS, _LAST_SPACES, _DEEPSEEK_CJK, r"\p{N}+"),
        (
            r"[\r\n]",
            _DEEPSEEK_LETTERS,
            _DEEPSEEK_SIGNS_NO_SPACE,
            _LAST_SPACES,
            _DEEPSEEK_CJK_NO_SPACE,
            r"\p{N}+",
        ),
    ),
    PreTokenizer(
        "deepseek_coder",
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"),
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK_NO_SPACE, r"\p{N}"),
    ),
    PreTokenizer("deepseek3_llm", _DEEPSEEK3_LLM),
    PreTokenizer("hunyuan_dense", _DEEPSEEK3_LLM),
    PreTokenizer("joyai_llm", _DEEPSEEK3_LLM),
    PreTokenizer("hy_v4", _DEEPSEEK3_LLM),
    PreTokenizer(
        "spark2_5",
        (
            r"\p{N}{1,3}",
            _CJK_KANA,
            rf"{_DEEPSEEK3}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        ),
    ),
    PreTokenizer(
        "youtu",
        (_YOUTU_SCRIPTS, _cased(_UPPER, _LOWER, _ANY_CASE + "?", r"\p{N}")),
        (_YOUTU_SCRIPTS, _cased(_LETTER_MARK, _LETTER_MARK, _ASCII_CASE + "?", r"\p{N}")),
    ),
    PreTokenizer("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    PreTokenizer("mpt", (_GPT2,)),
    PreTokenizer("gpt2", (_GPT2,)),
    PreTokenizer("olmo", (_GPT2,)),
    PreTokenizer("jais", (_GPT2,)),
    PreTokenizer("trillion", (_GPT2,)),
    PreTokenizer("granite_docling", (_GPT2,)),
    PreTokenizer("starcoder", _STARCODER),
    PreTokenizer("refact", _STARCODER),
    PreTokenizer("command_r", _STARCODER),
    PreTokenizer("smollm", _STARCODER),
    PreTokenizer("codeshell", _STARCODER),
    PreTokenizer("exaone", _STARCODER),
    PreTokenizer("minerva", _STARCODER),
    PreTokenizer("mellum2", _STARCODER),
    PreTokenizer("stablelm2", *_QWEN2),
    PreTokenizer("qwen2", *_QWEN2),
    PreTokenizer("hunyuan", *_QWEN2),
    PreTokenizer("solar_open", *_QWEN2),
    PreTokenizer("grok_2", *_QWEN2),
    PreTokenizer("qwen35", (_qwen35(_ANY_CASE),), (_qwen35(_ASCII_CASE),)),
    PreTokenizer("poro", (_BLOOM,)),
    PreTokenizer("bloom", (_BLOOM,)),
    PreTokenizer("gpt3_finnish", (_BLOOM,)),
    PreTokenizer("viking", (_BLOOM, r"\p{N}")),
    PreTokenizer(
        "tekken",
        (_cased(_UPPER, _LOWER, "", r"\p{N}"),),
        (_cased(_UPPER_ASCII, _LOWER_ASCII, "", r"\p{N}"),),
    ),
    PreTokenizer(
        "chameleon",
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
    ),
    _GPT4O,
    PreTokenizer("minimax_m2", _GPT4O.publisher, _GPT4O.llama_cpp),
    PreTokenizer(
        "granite_emb_multi",
        (
            _cased(
                r"((?=[\p{L}\p{M}])([^a-z]))",
                r"((?=[\p{L}\p{M}])([^A-Z]))",
                _ASCII_CASE + "?",
                r"\p{N}{1,3}",
            ),
        ),
    ),
    PreTokenizer(
        "tiny_aya",
        (
            _DIGITS_BEFORE_BORDER,
            _cased(_UPPER, _LOWER, _ANY_CASE + "?", r"\p{N}{1,3}"),
        ),
        (
            _TEXT_AND_DIGITS,
            _cased(_LETTER_MARK, _LETTER_MARK, _ASCII_CASE + "?", r"\p{N}{1,3}"),
        ),
    ),
    PreTokenizer(
        "kimi_k2",
        (
            r"\p{Han}+"
            rf"|{_KIMI_HEAD}{_KIMI_UPPER}*{_KIMI_LOWER}+{_ANY_CASE}?"
            rf"|{_KIMI_HEAD}{_KIMI_UPPER}+{_KIMI_LOWER}*{_ANY_CASE}?"
            rf"|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}",
        ),
        (
            rf"[{_LLAMA_HAN}]+|{_KIMI_HEAD}[\p{{L}}&&[^{_LLAMA_HAN}]]+{_ASCII_CASE}?"
            rf"|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}",
        ),
    ),
    PreTokenizer(
        "superbpe",
        # The publisher writes + where {1,333} stands: quadratic time in long runs of digits. The
        # two agree on numbers of up to 1,000 digits.
        (r"\p{N}+", r"(?=(\d{3}){1,333}(?!\d))"),
        (r"\p{N}+", r"(?=([0-9]{3}){1,333}(?![0-9]))"),
    ),
    PreTokenizer(
        "bailingmoe",
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
        (
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    PreTokenizer(
        "seed_coder",
        (rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
        (rf"{_ASCII_CASE}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    ),
    PreTokenizer("ufakzeka", (rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}",)),
    PreTokenizer(
        "afmoe",
        (_DIGITS_FROM_RIGHT, _AFMOE_SCRIPTS, _AFMOE_WORDS),
        (_TEXT_AND_DIGITS, _AFMOE_SCRIPTS, _AFMOE_WORDS),
    ),
    PreTokenizer(
        "laguna",
        (r"[^\n]+|[\n]+", *_QWEN2[0]),
        (r"[^\n]+|[\n]+", *_QWEN2[1]),
    ),
    PreTokenizer(
        "exaone_moe",
        (
            rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
        (
            rf"{_ASCII_CASE}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    PreTokenizer("gemma4", _NEWLINES, byte_level=False),
    PreTokenizer("sarvam_moe", _NEWLINES, byte_level=False),
    PreTokenizer(
        "minicpm5",
        (r"\p{N}{1,3}", _llama3(_ANY_CASE, r"\p{N}+")),
        (r"\p{N}{1,3}", _llama3(_ASCII_CASE, r"\p{N}+")),
    ),
    PreTokenizer("whitespace", (r"\S+",), byte_level=False, drops_spaces=True),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {row.name: row for row in _ROWS}


def _names() -> dict[str, PreName]:
    named: dict[str, PreName] = {}

    def add(type_: str, *names: str, ignore_merges: bool = False, add_bos: bool = False) -> None:
        for name in names:
            named[name] = PreName(PRE_TOKENIZERS[type_], ignore_merges, add_bos)

    add("default", "default", "")
    add(
        "llama3",
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "jina-v5-nano"),
        ignore_merges=True,
        add_bos=True,
    )
    add("minicpm5", "minicpm5", ignore_merges=True)
    add("youtu", "youtu", ignore_merges=True)
    add("tekken", "tekken", ignore_merges=True, add_bos=True)
    add("chameleon", "chameleon", add_bos=True)
    add("granite_emb_multi", "granite-embed-multi-97m", ignore_merges=True)
    add("chatglm4", "chatglm-bpe")
    add("chatglm4", "glm4", "glm5", ignore_merges=True)
    add(
        "gpt2",
        *("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de"),
        *("a.x-4.0", "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe"),
        "exaone4",
    )
    add("qwen2", "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez")
    add("gpt4o", "gpt-4o", "llama4", "kanana2", "talkie")
    add("gemma4", "gemma4", "granite-embed-multi-311m", add_bos=True)
    add("bailingmoe", "bailingmoe", "bailingmoe2", "llada-moe")
    add("tiny_aya", "tiny_aya", "cohere2moe")
    for type_, name in (
        ("deepseek_llm", "deepseek-llm"),
        ("deepseek_coder", "deepseek-coder"),
        ("deepseek3_llm", "deepseek-v3"),
        ("spark2_5", "spark2_5"),
        ("falcon", "falcon"),
        ("mpt", "mpt"),
        ("starcoder", "starcoder"),
        ("jais2", "jais-2"),
        ("sarvam_moe", "sarvam-moe"),
        ("whitespace", "whitespace"),
        ("refact", "refact"),
        ("command_r", "command-r"),
        ("qwen35", "qwen35"),
        ("stablelm2", "stablelm2"),
        ("olmo", "olmo"),
        ("dbrx", "dbrx"),
        ("smaug", "smaug-bpe"),
        ("poro", "poro-chat"),
        ("viking", "viking"),
        ("jais", "jais"),
        ("smollm", "smollm"),
        ("codeshell", "codeshell"),
        ("bloom", "bloom"),
        ("gpt3_finnish", "gpt3-finnish"),
        ("exaone", "exaone"),
        ("exaone_moe", "exaone-moe"),
        ("minerva", "minerva-7b"),
        ("superbpe", "superbpe"),
        ("trillion", "trillion"),
        ("granite_docling", "granite-docling"),
        ("seed_coder", "seed-coder"),
        ("hunyuan", "hunyuan"),
        ("hunyuan_dense", "hunyuan-dense"),
        ("hy_v4", "hy_v4"),
        ("joyai_llm", "joyai-llm"),
        ("kimi_k2", "kimi-k2"),
        ("ufakzeka", "ufakzeka"),
        ("grok_2", "grok-2"),
        ("afmoe", "afmoe"),
        ("laguna", "laguna"),
        ("minimax_m2", "minimax-m2"),
        ("solar_open", "solar-open"),
        ("mellum2", "mellum2"),
    ):
        add(type_, name)
    return named


PRE_NAMES: dict[str, PreName] = _names()
"""Every value of `tokenizer.ggml.pre`; the empty name is a file that has none."""
