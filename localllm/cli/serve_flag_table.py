"""The flags and variables of `vllm serve` and `llama-server`, and what `localllm serve` makes of
each: one table. A flag becomes one of ours, or has no meaning here, or asks for what cannot be
done. `serve_flags.py` reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Flag:
    """A row. to: our option that takes its value, or `--sampling NAME` for a parameter of answers.
    value: "" for none, "one", "many" (up to the next flag), "maybe" (a word of `words`). say: why
    it has no meaning. fails: why it cannot be done. words: values and what they mean for `to`; of
    parameters, "" for what it is anyway."""

    names: str
    value: str = "one"
    to: str = ""
    say: str = ""
    fails: str = ""
    words: tuple[tuple[str, str], ...] = ()


_TYPES = tuple((w, "f16") for w in ("auto", "f16", "float16", "bfloat16", "bf16")) + tuple(
    (w, "q8_0") for w in ("q8_0", "fp8", "fp8_e4m3", "fp8_e5m2", "int8")
)
_TRUTH = (("true", ""), ("false", ""), ("True", ""), ("False", ""))
_SWITCH = (("on", ""), ("off", ""), ("auto", ""), ("0", ""), ("1", ""))
_CPU = "the model is computed on the CPU"
_BATCH = "the engine chooses the size of its batches itself"
_SPECULATION = "there is no speculation yet; it would change the speed of answers only"
_QUANTIZED = "a GGUF file says itself how it is quantized"
_CACHE = "what was computed of a prompt is kept as long as there is room"
_TOOLS = "tools are not served yet; a request with tools is refused"
_MODEL = "a GGUF file holds all of it"
_ROPE = "a GGUF file says itself how far apart its positions are"
_ANSWERS = "here are answers in text only"
_CORES = "the engine places its threads itself"
_LOG = "--log-format says what is logged"
_UI = "there is no web UI"
_PICTURES = "pictures are not served yet"
_OFF = (("-1", "0"), ("-1.0", "0"))

FLAGS: tuple[Flag, ...] = (
    # Ours under another name
    Flag("--max-model-len -c --ctx-size", to="--ctx"),
    Flag("--kv-cache-dtype -ctk --cache-type-k -ctv --cache-type-v", to="--kv-type", words=_TYPES),
    Flag("--served-model-name", "many", to="--name"),
    Flag("--alias -a", to="--name"),
    Flag("--api-key-file", to="--api-key=@"),
    Flag("--chat-template --chat-template-file", to="--template"),
    Flag("--allowed-origins", to="--cors-origin"),
    Flag("--ssl-certfile --ssl-cert-file", to="--tls-cert"),
    Flag("--ssl-keyfile --ssl-key-file", to="--tls-key"),
    Flag("-t", to="--threads"),
    Flag("--swap-space", to="--swap-space"),
    Flag("--parallel --max-num-seqs -np", to="--parallel", words=(("-1", ""), ("auto", ""))),
    Flag("-m --model -hf -hfr --hf-repo", to="NAME"),
    Flag("-hff --hf-file", to="FILE"),
    Flag("-mu --model-url", to="NAME"),
    Flag("--cors-origins", to="--cors-origin"),
    # Parameters of answers, where a request has none
    Flag("--temp --temperature", to="--sampling temperature"),
    Flag("--top-k", to="--sampling top_k", words=(("-1", "0"),)),
    Flag("--top-p", to="--sampling top_p"),
    Flag("--min-p", to="--sampling min_p"),
    Flag("--typical --typical-p", to="--sampling typical_p"),
    Flag("--top-nsigma --top-n-sigma", to="--sampling top_n_sigma", words=_OFF),
    Flag("--xtc-probability", to="--sampling xtc_probability"),
    Flag("--xtc-threshold", to="--sampling xtc_threshold"),
    Flag("--repeat-penalty", to="--sampling repeat_penalty"),
    Flag("--repeat-last-n", to="--sampling repeat_last_n"),
    Flag("--presence-penalty", to="--sampling presence_penalty"),
    Flag("--frequency-penalty", to="--sampling frequency_penalty"),
    Flag("--dry-multiplier", to="--sampling dry_multiplier"),
    Flag("--dry-base", to="--sampling dry_base"),
    Flag("--dry-allowed-length", to="--sampling dry_allowed_length"),
    Flag("--dry-penalty-last-n", to="--sampling dry_penalty_last_n"),
    Flag("--dynatemp-range", to="--sampling dynatemp_range"),
    Flag("--dynatemp-exp", to="--sampling dynatemp_exponent"),
    Flag("--mirostat", to="--sampling mirostat"),
    Flag("--mirostat-lr", to="--sampling mirostat_eta"),
    Flag("--mirostat-ent", to="--sampling mirostat_tau"),
    Flag("--samplers", to="--sampling samplers"),
    Flag("--ignore-eos", "", to="--sampling ignore_eos"),
    Flag("-n --predict --n-predict", to="--sampling max_tokens", words=(("-1", "none"),)),
    Flag("--seed -s", to="--sampling seed", words=(("-1", ""), ("4294967295", ""))),
    Flag("-r --reverse-prompt", to="--sampling stop"),
    Flag("--dry-sequence-breaker", to="--sampling dry_sequence_breakers"),
    Flag("-l --logit-bias", to="--sampling logit_bias"),
    Flag("--override-generation-config", to="--sampling"),
    # Without a meaning here
    Flag("--gpu-memory-utilization", say=f"{_CPU}; localllm plan shows the memory it takes"),
    Flag("-ngl --gpu-layers --n-gpu-layers", say=_CPU),
    Flag("--device -dev --main-gpu -mg --split-mode -sm --tensor-split -ts", say=_CPU),
    Flag("--max-num-batched-tokens -b --batch-size -ub --ubatch-size", say=_BATCH),
    Flag("--enable-chunked-prefill -cb --cont-batching --no-cont-batching", "", say=_BATCH),
    Flag("--enable-prefix-caching", "", say=_CACHE),
    Flag("--no-enable-prefix-caching", "", say=f"{_CACHE}; a request can send store: false"),
    Flag("-kvu --kv-unified", "", say="there is one pool for all requests"),
    Flag("--kv-unified-per-slot", say="there is one pool for all requests"),
    Flag("-cram --cache-ram", say=_CACHE),
    Flag("--slot-save-path", say="there are no slots to save"),
    Flag("--block-size", say="blocks hold 32 tokens"),
    Flag("--quantization -q --dtype --load-format", say=_QUANTIZED),
    Flag("-tb --threads-batch", say="--threads counts for prompts too"),
    Flag("-fa --flash-attn", "maybe", say="there is one kind of attention", words=_SWITCH),
    Flag("--jinja --no-jinja", "", say="chat templates are always run as they are"),
    Flag("--reasoning-format --reasoning-parser", say="reasoning comes as reasoning_content"),
    Flag("--reasoning-budget", say="a request says its reasoning_effort"),
    Flag("--chat-template-kwargs", say="a request sends its chat_template_kwargs"),
    Flag("--metrics --no-webui --no-ui", "", say="/metrics is always there, a web UI never"),
    Flag("--no-mmap", "", say="weights are read into memory unless --mmap is given"),
    Flag("--mlock", "", say="memory is not locked"),
    Flag("--load-mode -lm", say="weights are read into memory unless --mmap is given"),
    Flag("--trust-remote-code", "", say="no code that comes with a model is run"),
    Flag("--enforce-eager", "", say="there are no graphs to capture"),
    Flag("--disable-log-requests --no-enable-log-requests --disable-log-stats", "",
         say="prompts are never logged"),
    Flag("--uvicorn-log-level", say="there is no log of requests"),
    Flag("--enable-auto-tool-choice", "", say=_TOOLS),
    Flag("--tool-call-parser", say=_TOOLS),
    Flag("--tensor-parallel-size -tp", words=(("1", ""),), say="there is one machine",
         fails="above 1 it needs the vLLM engine, which this build does not have"),
    Flag("--pipeline-parallel-size -pp", words=(("1", ""),), say="there is one machine",
         fails="above 1 it needs the vLLM engine, which this build does not have"),
    Flag("--data-parallel-size -dp", words=(("1", ""),), say="there is one machine",
         fails="above 1 it needs the vLLM engine, which this build does not have"),
    Flag("--enable-expert-parallel --disable-custom-all-reduce --async-scheduling "
         "--no-async-scheduling --disable-frontend-multiprocessing", "",
         say="there is one machine"),
    Flag("--distributed-executor-backend --cpu-offload-gb --num-gpu-blocks-override "
         "--compilation-config -cc -O --max-seq-len-to-capture --attention-backend", say=_CPU),
    Flag("--tokenizer --tokenizer-mode --config-format --hf-overrides --revision --task --runner "
         "--generation-config --hf-config-path --tokenizer-revision --code-revision --model-impl",
         say=_MODEL),
    Flag("--download-dir", say="models lie where LOCALLLM_HOME says"),
    Flag("--language-model-only", "", say="only text is served yet"),
    Flag("--limit-mm-per-prompt --mm-processor-kwargs", say="only text is served yet"),
    Flag("--default-chat-template-kwargs", say="a request sends its chat_template_kwargs"),
    Flag("--chat-template-content-format", say="texts and lists of parts are both taken"),
    Flag("--enable-reasoning --skip-chat-parsing --no-skip-chat-parsing", "",
         say="reasoning comes as reasoning_content"),
    Flag("--guided-decoding-backend --structured-outputs-config",
         say="constrained output is not served yet; a request for it is refused"),
    Flag("--enable-log-requests --enable-log-outputs", "", say="prompts are never logged"),
    Flag("--max-log-len --middleware --log-prompts-dir",
         say="prompts are never logged, and no code is added"),
    Flag("--disable-uvicorn-access-log --enable-prompt-tokens-details", "",
         say="there is no log of requests, and cached tokens are always counted"),
    Flag("--slots --no-slots --no-warmup --warmup", "", say="there are no slots and no warmup"),
    Flag("--log-disable -v --verbose --log-verbose --log-prefix --no-log-prefix --log-timestamps "
         "--no-log-timestamps --log-jsonl --no-log-jsonl", "", say=_LOG),
    Flag("-lv --verbosity --log-verbosity --log-file --log-config-file", say=_LOG),
    Flag("--log-colors", "maybe", say=_LOG, words=_SWITCH),
    Flag("-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll --numa -Cb --cpu-mask-batch "
         "-Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch", say=_CORES),
    Flag("--threads-http --api-server-count -asc", say="one thread answers, others compute"),
    Flag("-kvo --kv-offload -nkvo --no-kv-offload --op-offload --no-op-offload --repack -nr "
         "--no-repack --no-host -cmoe --cpu-moe", "", say=_CPU),
    Flag("-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -ot --override-tensor -fitt --fit-target -fitc "
         "--fit-ctx --kv-cache-memory-bytes --moe-cache-mib", say=_CPU),
    Flag("-fit --fit", "maybe", say="what fits is chosen by itself", words=_SWITCH),
    Flag("--swa-full --perf --no-perf --check-tensors --no-kv-unified -no-kvu -nocb", "",
         say="the engine is another one and has no such switch"),
    Flag("-lzm --lazy-mode -dt --defrag-thold --scheduling-policy --long-prefill-token-threshold "
         "--max-num-partial-prefills --max-long-partial-prefills --prefix-caching-hash-algo "
         "--mamba-ssm-cache-dtype --logprobs-mode --stream-interval",
         say="the engine is another one and has no such switch"),
    Flag("--cache-prompt", "", say=_CACHE),
    Flag("--no-cache-prompt", "", say=f"{_CACHE}; a request can send cache_prompt: false"),
    Flag("--cache-reuse -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step "
         "-sps --slot-prompt-similarity", say=_CACHE),
    Flag("--cache-idle-slots --no-cache-idle-slots", "", say=_CACHE),
    Flag("--context-shift --no-context-shift", "",
         say="an answer ends with the context; a request can send truncate"),
    Flag("--keep", say="a request can send truncate"),
    Flag("-rea --reasoning", "maybe", say="a request says its reasoning_effort", words=_SWITCH),
    Flag("--reasoning-effort", say="a request says its reasoning_effort"),
    Flag("--reasoning-budget-message", say="there is no budget of reasoning"),
    Flag("--reasoning-preserve --no-reasoning-preserve --prefill-assistant "
         "--no-prefill-assistant", "", say="the chat template decides"),
    Flag("-hft --hf-token", say="the token is taken from HF_TOKEN"),
    Flag("--offline", "", say="a model that is here is served without the network"),
    Flag("--ui --webui --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy "
         "--props -no-ag --no-agent", "", say=_UI),
    Flag("--ui-config --webui-config --ui-config-file --webui-config-file", say=_UI),
    Flag("--cors-methods --cors-headers --allowed-methods --allowed-headers",
         say="pages may send what the API needs"),
    Flag("--cors-credentials --no-cors-credentials --allow-credentials", "",
         say="pages send the key in a header, and no cookies"),
    Flag("--sse-ping-interval", say="silent streams are pinged after a time that is fixed"),
    Flag("-e --escape --no-escape", "", say="it counts for texts of flags, not for prompts"),
    Flag("--reuse-port --enable-server-load-tracking "
         "--enable-request-id-headers --enable-log-deltas --return-tokens-as-token-ids "
         "--disable-fastapi-docs --enable-offline-docs", "",
         say="there is no such switch here"),
    Flag("--response-role --tags --sleep-idle-seconds --h11-max-incomplete-event-size "
         "--h11-max-header-count", say="there is no such setting here"),
    Flag("--models-max", say="--memory says how much models may take together"),
    Flag("--models-autoload --no-models-autoload", "", say="a request loads its model"),
    Flag("--no-mmproj --no-mmproj-auto --mmproj-auto --mmproj-offload --no-mmproj-offload "
         "--skip-mm-profiling", "", say="only text is served yet"),
    Flag("--image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --allowed-media-domains "
         "--media-path --allowed-local-media-path --mm-processor-cache-gb --mm-encoder-tp-mode "
         "-mmdev --mmproj-device --video-fps --video-timestamp-interval --video-ffmpeg-dir",
         say="only text is served yet"),
    Flag("--spec-type --spec-draft-model -md --model-draft --spec-draft-hf -hfd -hfrd "
         "--hf-repo-draft --spec-draft-n-max --draft --draft-n --draft-max --spec-draft-n-min "
         "--draft-min --draft-n-min --spec-draft-p-min --draft-p-min --spec-draft-p-split "
         "--draft-p-split --spec-draft-sampling --spec-synth-len --spec-synth-rates "
         "--spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd "
         "--threads-batch-draft --spec-draft-cpu-mask -Cd --cpu-mask-draft "
         "--spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict "
         "--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft "
         "--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-range-batch "
         "-Crbd --cpu-range-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft "
         "--spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft "
         "--spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft "
         "--n-gpu-layers-draft --spec-draft-override-tensor -otd --override-tensor-draft "
         "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft "
         "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd "
         "--cache-type-v-draft -cd --ctx-size-draft -lcs --lookup-cache-static -lcd "
         "--lookup-cache-dynamic", say=_SPECULATION),
    Flag("--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match "
         "--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits "
         "--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits "
         "--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m "
         "--spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m "
         "--spec-ngram-min-hits", say=_SPECULATION),
    Flag("--spec-default --spec-draft-backend-sampling --no-spec-draft-backend-sampling "
         "--spec-draft-cpu-moe -cmoed --cpu-moe-draft", "", say=_SPECULATION),
    Flag("--speculative-config -sc --spec-method --spec-model --spec-tokens --speculative-model "
         "--num-speculative-tokens --speculative-model-quantization "
         "--speculative-draft-tensor-parallel-size -spec-draft-tp --speculative-max-model-len "
         "--speculative-disable-by-batch-size --ngram-prompt-lookup-max "
         "--ngram-prompt-lookup-min --spec-decoding-acceptance-method "
         "--typical-acceptance-sampler-posterior-threshold "
         "--typical-acceptance-sampler-posterior-alpha --num-lookahead-slots", say=_SPECULATION),
    Flag("--speculative-disable-mqa-scorer", "", say=_SPECULATION),
    Flag("--disable-logprobs-during-spec-decoding", "maybe", say=_SPECULATION, words=_TRUTH),
    Flag("--max-logprobs", say="a request may ask for as many as OpenAI's API allows"),
    Flag("-to --timeout", say="slow clients are let go after a time that is fixed"),
    # What cannot be done
    Flag("--enable-lora --lora-init-without-apply", "", fails="there are no adapters yet"),
    Flag("--lora --lora-modules --lora-scaled", fails="there are no adapters yet"),
    Flag("--mmproj -mm -mmu --mmproj-url", fails=_PICTURES),
    Flag("--embedding --embeddings --rerank --reranking --enable-prompt-embeds", "",
         fails=_ANSWERS),
    Flag("--pooling --embd-normalize --pooler-config --convert", fails=_ANSWERS),
    Flag("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
         "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --rope-theta",
         fails=_ROPE),
    Flag("--override-kv", fails="a model is run as its file has it"),
    Flag("--control-vector --control-vector-scaled --control-vector-layer-range",
         fails="there are no control vectors yet"),
    Flag("--sampler-seq --sampling-seq", fails="give the names of the samplers: --samplers"),
    Flag("--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default "
         "--fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default "
         "--gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default "
         "--embd-gemma-default", "", fails="give the name of a model"),
    Flag("--grammar --grammar-file -j --json-schema -jf --json-schema-file",
         fails="constrained output is not served yet"),
    Flag("-sp --special", "", fails="control tokens are never shown"),
    Flag("--adaptive-decay", say="nothing without --adaptive-target"),
    Flag("-bs --backend-sampling", "", say=_CPU),
    Flag("--rpc", fails="there is one machine"),
    Flag("-dr --docker-repo", fails="give the name of a model"),
    Flag("--adaptive-target", fails="there is no such sampler here", words=_OFF),
    Flag("--tools --tools-runtime --mcp-servers-config --mcp-servers-json --tool-server "
         "--tool-parser-plugin --reasoning-parser-plugin --logits-processors",
         fails="no code of others runs here"),
    Flag("-ag --agent", "", fails="no code of others runs here"),
    Flag("--path", fails="no files are served"),
    Flag("--api-prefix --root-path", fails="the API lies at /v1"),
    Flag("--models-dir --models-preset", fails="give the models, or none: all that are here"),
    Flag("--config", fails="give its lines as flags"),
    Flag("--uds", fails="give --host and --port"),
    Flag("--ssl-ca-certs", fails="clients are known by their keys"),
)  # fmt: skip

#: Variables of llama-server and vLLM, each with the flag that it stands for.
VARIABLES = {
    "LLAMA_ARG_MODEL": "--model",
    "LLAMA_ARG_HF_REPO": "--hf-repo",
    "LLAMA_ARG_HF_FILE": "--hf-file",
    "LLAMA_ARG_HOST": "--host",
    "LLAMA_ARG_PORT": "--port",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_N_PREDICT": "--n-predict",
    "LLAMA_ARG_TEMPERATURE": "--temp",
    "LLAMA_ARG_TOP_K": "--top-k",
    "LLAMA_ARG_TOP_P": "--top-p",
    "LLAMA_ARG_MIN_P": "--min-p",
    "LLAMA_ARG_REPEAT_PENALTY": "--repeat-penalty",
    "LLAMA_ARG_PRESENCE_PENALTY": "--presence-penalty",
    "LLAMA_ARG_FREQUENCY_PENALTY": "--frequency-penalty",
    "LLAMA_ARG_MODEL_URL": "--model-url",
    "LLAMA_ARG_CORS_ORIGINS": "--cors-origins",
    "LLAMA_ARG_CACHE_PROMPT": "--cache-prompt",
    "LLAMA_ARG_CACHE_REUSE": "--cache-reuse",
    "LLAMA_ARG_CONTEXT_SHIFT": "--context-shift",
    "LLAMA_ARG_SWA_FULL": "--swa-full",
    "LLAMA_ARG_FIT": "--fit",
    "LLAMA_ARG_CPU_MOE": "--cpu-moe",
    "LLAMA_ARG_N_CPU_MOE": "--n-cpu-moe",
    "LLAMA_ARG_OVERRIDE_TENSOR": "--override-tensor",
    "LLAMA_ARG_NUMA": "--numa",
    "LLAMA_ARG_THREADS_HTTP": "--threads-http",
    "LLAMA_ARG_REASONING": "--reasoning",
    "LLAMA_ARG_REASONING_EFFORT": "--reasoning-effort",
    "LLAMA_ARG_UI": "--ui",
    "LLAMA_ARG_API_PREFIX": "--api-prefix",
    "LLAMA_ARG_STATIC_PATH": "--path",
    "LLAMA_ARG_EMBEDDINGS": "--embeddings",
    "LLAMA_ARG_RERANKING": "--reranking",
    "LLAMA_ARG_POOLING": "--pooling",
    "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
    "LLAMA_ARG_ROPE_SCALE": "--rope-scale",
    "LLAMA_ARG_ROPE_FREQ_BASE": "--rope-freq-base",
    "LLAMA_ARG_ROPE_FREQ_SCALE": "--rope-freq-scale",
    "LLAMA_ARG_TOOLS": "--tools",
    "LLAMA_ARG_AGENT": "--agent",
    "LLAMA_ARG_MODELS_DIR": "--models-dir",
    "LLAMA_ARG_MODELS_MAX": "--models-max",
    "LLAMA_ARG_LOG_FILE": "--log-file",
    "LLAMA_ARG_LOG_VERBOSITY": "--verbosity",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
    "LLAMA_ARG_DEVICE": "--device",
    "LLAMA_ARG_MAIN_GPU": "--main-gpu",
    "LLAMA_ARG_SPLIT_MODE": "--split-mode",
    "LLAMA_ARG_TENSOR_SPLIT": "--tensor-split",
    "LLAMA_ARG_N_PARALLEL": "-np",
    "LLAMA_ARG_THREADS": "-t",
    "LLAMA_ARG_CONT_BATCHING": "--cont-batching",
    "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified",
    "LLAMA_ARG_CACHE_RAM": "--cache-ram",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_LOAD_MODE": "--load-mode",
    "LLAMA_ARG_ALIAS": "--alias",
    "LLAMA_ARG_JINJA": "--jinja",
    "LLAMA_ARG_CHAT_TEMPLATE": "--chat-template",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "--chat-template-file",
    "LLAMA_ARG_CHAT_TEMPLATE_KWARGS": "--chat-template-kwargs",
    "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    "LLAMA_ARG_MMPROJ": "--mmproj",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--model-draft",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--spec-draft-n-max",
    "LLAMA_ARG_SPEC_TYPE": "--spec-type",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
    "LLAMA_ARG_SPEC_DRAFT_N_MIN": "--spec-draft-n-min",
    "LLAMA_ARG_SPEC_DRAFT_P_MIN": "--spec-draft-p-min",
    "LLAMA_ARG_SPEC_DRAFT_P_SPLIT": "--spec-draft-p-split",
    "LLAMA_ARG_SPEC_DRAFT_SAMPLING": "--spec-draft-sampling",
    "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING": "--spec-draft-backend-sampling",
    "LLAMA_ARG_SPEC_DRAFT_CPU_MOE": "--spec-draft-cpu-moe",
    "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE": "--spec-draft-n-cpu-moe",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K": "--spec-draft-type-k",
    "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V": "--spec-draft-type-v",
    "LLAMA_ARG_SPEC_SYNTH_LEN": "--spec-synth-len",
    "LLAMA_ARG_SPEC_SYNTH_RATES": "--spec-synth-rates",
    "LLAMA_ARG_N_GPU_LAYERS_DRAFT": "--n-gpu-layers-draft",
    "LLAMA_ARG_DRAFT_MAX": "--draft-max",
    "LLAMA_ARG_DRAFT_MIN": "--draft-min",
    "LLAMA_ARG_MODEL_DRAFT": "--model-draft",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots",
    "LLAMA_ARG_TIMEOUT": "--timeout",
    "LLAMA_ARG_SSL_CERT_FILE": "--ssl-cert-file",
    "LLAMA_ARG_SSL_KEY_FILE": "--ssl-key-file",
    "LLAMA_ARG_API_KEY_FILE": "--api-key-file",
    "LLAMA_ARG_KV_UNIFIED_PER_SLOT": "--kv-unified-per-slot",
    "LLAMA_ARG_MMPROJ_AUTO": "--mmproj-auto",
    "LLAMA_ARG_OFFLINE": "--offline",
    "LLAMA_ARG_KV_OFFLOAD": "--kv-offload",
    "LLAMA_API_KEY": "--api-key",
    "VLLM_API_KEY": "--api-key",
}
