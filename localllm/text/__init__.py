"""Text to token ids and back: tokenizers, the streaming detokenizer, chat templates.

Importing this package or its modules loads neither `tokenizers` nor `jinja2`; the first tokenizer
or template does.
"""
