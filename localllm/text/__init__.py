"""Text to token ids and back: tokenizers, chat templates, reasoning, answers as streams.

Importing this package or its modules loads neither `tokenizers` nor `jinja2`; the first tokenizer
or template does.
"""
