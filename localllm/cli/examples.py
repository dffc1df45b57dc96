"""Examples of every command, one table: they end each command's help and fill the manual page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A command line, and what it is good for in one line."""

    line: str
    text: str


EXAMPLES: dict[str, tuple[Example, ...]] = {
    "run": (
        Example(
            "localllm run smollm2:135m 'Why is the sky blue?'",
            "Answers once. The model is fetched first if it is not here.",
        ),
        Example(
            "git diff | localllm run smollm2:135m 'Write a commit message:'",
            "What comes on stdin is added to the prompt.",
        ),
        Example(
            "localllm run smollm2:135m",
            "A conversation. /help lists its commands, Ctrl-D leaves.",
        ),
        Example(
            "localllm run ./model.gguf --raw 'Once upon a time'",
            "A file works like a name. --raw continues the text as it is.",
        ),
        Example(
            "localllm run smollm2:135m 'What is ice?' --json",
            "The exact text, counts and timings as one JSON object.",
        ),
    ),
    "chat": (
        Example("localllm chat", "Goes on with the model that was used last."),
        Example("localllm chat smollm2:135m", "Begins with this one; it is fetched if need be."),
        Example(
            "localllm chat --url http://127.0.0.1:11434/v1",
            "Over the models of another server: here of Ollama.",
        ),
        Example(
            "localllm chat qwen3 --url https://llm.example/v1 --api-key @key.txt",
            "A model of a server that asks for a key.",
        ),
    ),
    "pull": (
        Example("localllm pull smollm2:135m", "Fetches a model, or goes on where it stopped."),
        Example("localllm pull smollm2:135m gemma3:270m", "Several at once."),
        Example("localllm pull smollm2:135m --json", "Progress as JSON, one object a line."),
    ),
    "search": (
        Example("localllm search", "All models that the catalogue knows."),
        Example("localllm search qwen coder", "Those that hold both words."),
        Example(
            "localllm search --hub gemma-3 --limit 10", "Repositories of the Hugging Face Hub."
        ),
    ),
    "recommend": (
        Example("localllm recommend", "What fits here, and how fast it will answer."),
        Example("localllm recommend --ctx 32768 --limit 5", "With room for a long context."),
        Example("localllm recommend --json", "The same for programs."),
    ),
    "list": (
        Example("localllm list", "The models here, their sizes and where they came from."),
        Example("localllm list --all", "Also what can be pulled."),
        Example("localllm list --json", "The same for programs."),
    ),
    "show": (
        Example("localllm show smollm2:135m", "Parameters, context, tokenizer, licence."),
        Example("localllm show ./model.gguf --verbose", "Also every metadata value and tensor."),
        Example("localllm show smollm2:135m --template", "Only the chat template."),
        Example("localllm show smollm2:135m --modelfile", "Its settings, to change them."),
    ),
    "plan": (
        Example("localllm plan smollm2:135m", "Weights, cache and buffers for usual contexts."),
        Example(
            "localllm plan llama3:70b-q4_K_M", "Of a model that is not here yet, by its header."
        ),
        Example("localllm plan ./model.gguf --ctx 8192", "Only for a context of 8192 tokens."),
        Example("localllm plan smollm2:135m --json", "The same for programs."),
    ),
    "outdated": (
        Example("localllm outdated", "Asks the sources of all models; fetches nothing."),
        Example("localllm outdated --json", "The same for programs."),
    ),
    "rm": (
        Example("localllm rm smollm2:135m", "Asks, then deletes the model."),
        Example("localllm rm --yes smollm2:135m gemma3:270m", "Deletes both without asking."),
    ),
    "cp": (
        Example("localllm cp smollm2:135m mine", "A second name; the file is shared."),
        Example("localllm cp ./model.gguf mine:1b", "A name for a file, which stays where it is."),
    ),
    "import": (
        Example("localllm import ./model.gguf", "Gives a file a name; it stays where it is."),
        Example("localllm import ./folder mine:7b", "A folder with a model, split or not."),
        Example("localllm import ./model.gguf mine --move", "Moves the file into the store."),
    ),
    "create": (
        Example("localllm create mine -f Modelfile", "FROM, SYSTEM, PARAMETER and so on."),
        Example("localllm create mine --force", "Anew, from ./Modelfile."),
    ),
    "serve": (
        Example(
            "localllm serve smollm2:135m",
            "OpenAI's API at http://127.0.0.1:8000/v1, for this machine only.",
        ),
        Example(
            "localllm serve --keep-alive 1h --memory 16G",
            "All models here, each loaded when a request names it, within 16 GB.",
        ),
        Example(
            "localllm serve smollm2:135m --host 0.0.0.0 --api-key @key.txt",
            "For other machines too: they send a key of the file.",
        ),
        Example(
            "localllm serve smollm2:135m --cors-origin https://chat.example",
            "A web page from elsewhere may ask too.",
        ),
    ),
    "ps": (
        Example("localllm ps", "What is loaded, how much memory it takes, and for how long."),
        Example("localllm ps --json", "The same for programs."),
    ),
    "stop": (
        Example("localllm stop smollm2:135m", "Gives its memory back, once its answers end."),
        Example("localllm stop hf.co/user/repo:Q4_K_M", "A name as `localllm ps` shows it."),
    ),
    "env": (
        Example("localllm env continue", "What belongs into Continue's configuration."),
        Example("localllm env aider --model smollm2:135m", "For the model of your choice."),
    ),
    "share": (
        Example("localllm share smollm2:135m", "For other users of this machine."),
        Example("localllm share --host 0.0.0.0 --api-key @key.txt", "For the whole network."),
    ),
    "verify": (
        Example("localllm verify", "Reads all models and compares their hashes."),
        Example("localllm verify smollm2:135m --json", "One of them, for programs."),
    ),
    "gc": (
        Example("localllm gc --dry-run", "What could go, and how large it is."),
        Example("localllm gc --yes", "Clears it away without asking."),
    ),
    "replay": (
        Example("localllm replay --list", "The answers on record, newest first."),
        Example("localllm replay 1a2b", "Gives one again and compares every token and byte."),
        Example("localllm replay 1a2b --show", "Shows the record; no model runs."),
        Example("localllm replay 1a2b --model ./model.gguf", "With the model from another place."),
        Example("localllm replay --delete-all --yes", "Forgets all of them."),
    ),
    "bench": (
        Example("localllm bench smollm2:135m", "Speed of prompts and of answers, as a table."),
        Example("localllm bench smollm2:135m --compare", "Beside llama.cpp, run in turn."),
        Example("localllm bench ./model.gguf --repetitions 3", "Quicker, with a wider spread."),
        Example("localllm bench smollm2:135m --picture speed.svg", "Also as a picture."),
    ),
    "doctor": (
        Example("localllm doctor", "What this machine offers, and whether all is well."),
        Example("localllm doctor --json", "The same for a bug report or a program."),
    ),
    "completion": (
        Example("localllm completion bash --install", "Writes the script where bash looks for it."),
        Example("localllm completion zsh", "Prints the script."),
        Example("localllm completion fish | source", "Only for this session of fish."),
    ),
    "help": (
        Example("localllm help run", "The same as: localllm run --help"),
        Example("localllm help --man | man -l -", "The whole manual as a page."),
    ),
}


def epilog(command: str) -> str:
    """The examples as click prints them after the options; its \\b keeps their lines."""
    lines = ["\b", "Examples:"]
    for example in EXAMPLES[command]:
        lines += [f"  {example.line}", f"      {example.text}"]
    return "\n".join(lines)
