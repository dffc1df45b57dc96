"""The npm package `openai` under Node, against the server. npm fetches it once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from stand_ins.api_server import NAME, FakeService, Running

CACHE = Path(__file__).resolve().parents[2] / ".cache"
PACKAGE = "openai@6.30.1"
NODE, NPM = shutil.which("node"), shutil.which("npm")
#: What npm says where it has no index.
OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENOTCACHED", "E404", "E403")
SCRIPT = """
import OpenAI from "openai";
const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const ask = (text, more) => client.chat.completions.create(
  { model, messages: [{ role: "user", content: text }], ...more });
const error = async (text, more) => {
  try { await ask(text, more); return null; }
  catch (e) { return [e.constructor.name, e.status, e.code, e.param]; }
};
const out = {};
const whole = await ask("say héllo");
out.whole = [whole.choices[0].message.content, whole.choices[0].finish_reason,
             whole.usage.completion_tokens];
out.stream = []; out.used = null;
for await (const piece of await ask(
    "say a€c", { stream: true, stream_options: { include_usage: true } })) {
  if (piece.choices[0]?.delta.content) out.stream.push(piece.choices[0].delta.content);
  if (piece.usage) out.used = piece.usage.completion_tokens;
}
const text = await client.completions.create({ model, prompt: "say xyz", echo: true });
out.text = text.choices[0].text;
out.models = [];
for await (const each of client.models.list()) out.models.push(each.id);
out.owner = (await client.models.retrieve(model)).owned_by;
out.wrong = await error("say a", { temperature: 9 });
out.missing = await error("say a", { model: "nobody" });
out.busy = await error("busy");
out.fault = await error("fault");
out.broken = [];
try {
  for await (const piece of await ask("break", { stream: true }))
    out.broken.push(piece.choices[0]?.delta.content ?? "");
} catch (e) { out.broken.push(e instanceof OpenAI.APIError, e.message); }
const left = await ask("drip", { stream: true });
for await (const piece of left) if (piece.choices[0]?.delta.content) break;
console.log(JSON.stringify(out));
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where Node finds the package."""
    if NODE is None or NPM is None:
        pytest.skip("node and npm are not here")
    found = CACHE / "npm" / PACKAGE
    if found.is_dir():
        return found
    made = found.with_name(f"{PACKAGE}.{os.getpid()}.part")
    made.mkdir(parents=True)
    try:
        command = [NPM, "install", "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
        done = subprocess.run(
            [*command, "--prefix", str(made)], capture_output=True, text=True, check=False
        )
        if any(code in done.stderr for code in OFFLINE):
            pytest.skip("npm has no index here")
        assert done.returncode == 0, done.stderr
        made.rename(found)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found


def test_the_package_under_node(folder: Path, fake: Running, tmp_path: Path) -> None:
    assert NODE is not None
    script = tmp_path / "ask.mjs"
    script.write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(folder / "node_modules")
    done = subprocess.run(
        [NODE, "--preserve-symlinks", str(script), f"{fake.url}/v1", NAME],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["whole"] == ["héllo", "stop", 5]
    assert out["stream"] == ["a", "€", "c"] and out["used"] == 3
    assert out["text"] == "say xyzxyz"
    assert out["models"] == [NAME] and out["owner"] == "localllm"
    assert out["wrong"] == ["BadRequestError", 400, "invalid_value", "temperature"]
    assert out["missing"] == ["NotFoundError", 404, "model_not_found", "model"]
    assert out["busy"] == ["RateLimitError", 429, "queue_full", None]
    assert out["fault"] == ["InternalServerError", 500, "internal_error", None]
    assert "".join(out["broken"][:-2]) == "ab" and out["broken"][-2] is True
    assert "no number" in out["broken"][-1]
    assert isinstance(fake.service, FakeService)
    assert fake.service.tickets[-1].cancelled.wait(5)  # it had left in the middle of a stream
