"""The backend of latent attention for GPUs: the choice, and its parts, by the kernels that this machine has, and the
CPU's. Without a GPU also engines in which it stands in the CPU's place; test_latent_engine.py has engines on a GPU."""

from types import SimpleNamespace

import pytest
import torch
from rocm_fp8_vllm import latent, latent_gpu
from vllm import envs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention import selector
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends import registry
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig

from tests.settings import full

from .cases import byte_deepseek, text
from .conftest import decodes, many_lengths
from .settings import of_cpus_alone
from .steps import counts

MI300X = DeviceCapability(9, 4)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP8 = current_platform.fp8_dtype()


def wanted(**changes) -> AttentionSelectorConfig:
    """What vLLM asks for, of a DeepSeek."""
    plain = dict(head_size=576, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=None, use_mla=True)
    return AttentionSelectorConfig(**plain | changes)


def config(speculative_tokens: int | None = None, ranks: int = 1) -> SimpleNamespace:
    asked = SimpleNamespace(num_speculative_tokens=speculative_tokens, parallel_drafting=False)
    return SimpleNamespace(
        speculative_config=asked if speculative_tokens else None,
        parallel_config=SimpleNamespace(decode_context_parallel_size=ranks),
        use_v2_model_runner=True,
    )


# --- the choice ---


@pytest.fixture
def rocm(monkeypatch):
    monkeypatch.setattr(type(current_platform), "is_rocm", lambda self: True)


@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        dict(dtype=torch.float16),
        dict(kv_cache_dtype="bfloat16"),
        dict(kv_cache_dtype="fp8"),
        dict(kv_cache_dtype="fp8_e4m3", dtype=torch.float16),
        dict(block_size=1),
        dict(block_size=48),
        dict(block_size=512),
        dict(use_non_causal=True),
        dict(use_dcp=True),
        dict(use_kv_connector=True),
    ],
    ids=str,
)
def test_it_serves(changes, rocm):
    assert latent_gpu.why_not(wanted(**changes), 128, MI300X, None) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(head_size=320), "head_size"),
        (dict(dtype=torch.float32), "dtype not supported"),
        (dict(kv_cache_dtype="float16"), "not in float16"),
        (dict(kv_cache_dtype="fp8_e5m2"), "kv_cache_dtype"),
        (dict(kv_cache_dtype="fp8_ds_mla"), "kv_cache_dtype"),
        (dict(use_sparse=True), "sparse"),
        (dict(has_sink=True), "sink"),
        (dict(has_sliding_window=True), "sliding window"),
        (dict(use_batch_invariant=True), "batch invariance"),
        (dict(use_pcp=True), "PCP"),
        (dict(use_non_causal=True, use_dcp=True), "non-causal MLA attention with DCP"),
    ],
    ids=str,
)
def test_what_it_cannot_serve_stays(changes, why, rocm):
    assert why in "; ".join(latent_gpu.why_not(wanted(**changes), 16, MI300X, None))


def test_sizes_of_the_engine_that_it_cannot_serve(rocm):
    assert latent_gpu.why_not(wanted(), 128, MI300X, config(7)) == []
    assert "8 new tokens a sequence, not 9" in str(latent_gpu.why_not(wanted(), 128, MI300X, config(8)))
    assert latent_gpu.why_not(wanted(use_dcp=True), 16, MI300X, config(ranks=8)) == []
    assert "128 heads, not 136" in str(latent_gpu.why_not(wanted(use_dcp=True), 17, MI300X, config(ranks=8)))
    for capability, taken in (((9, 4), True), ((9, 5), True), ((9, 0), False), ((11, 0), False)):
        assert (latent_gpu.why_not(wanted(), 16, DeviceCapability(*capability), None) == []) == taken


def test_on_nvidia_it_is_taken_by_its_name_alone(monkeypatch):
    monkeypatch.setattr(type(current_platform), "is_rocm", lambda self: False)
    for capability in ((10, 0), (9, 0), (8, 9)):
        (why,) = latent_gpu.why_not(wanted(), 16, DeviceCapability(*capability), None)
        assert "--attention-backend CUSTOM takes it" in why
    assert not latent_gpu.MlaDecodeBackend.supports_compute_capability(DeviceCapability(12, 0))


def test_a_variable_of_vllms_leaves_it_out(monkeypatch, rocm):
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "FewRowsFp8Linear,MlaDecodeBackend")
    assert envs.VLLM_DISABLED_KERNELS[1] == latent_gpu.MlaDecodeBackend.__name__
    assert latent_gpu.why_not(wanted(), 16, MI300X, None) == ["VLLM_DISABLED_KERNELS names it"]


@pytest.fixture
def platform(monkeypatch):
    """A GPU's platform, whose own choice is TRITON_MLA or what is named. CUSTOM is free."""

    class Rocm:
        @classmethod
        def get_device_capability(cls) -> DeviceCapability:
            return MI300X

        @classmethod
        def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None) -> str:
            return (selected_backend or AttentionBackendEnum.TRITON_MLA).get_path()

        def is_rocm(self) -> bool:
            return True

    monkeypatch.setattr(latent_gpu, "current_platform", Rocm())
    monkeypatch.setattr(registry, "_ATTN_OVERRIDES", {})
    return Rocm


def test_it_comes_first_where_no_backend_is_named(platform):
    latent_gpu.install()
    put_in = platform.get_attn_backend_cls
    latent_gpu.install()  # changes nothing
    assert platform.get_attn_backend_cls.__func__ is put_in.__func__
    ours, triton = latent_gpu.MlaDecodeBackend, AttentionBackendEnum.TRITON_MLA
    path = f"{ours.__module__}.{ours.__qualname__}"
    choose = platform.get_attn_backend_cls
    assert choose(None, wanted(), num_heads=16) == path
    assert choose(None, attn_selector_config=wanted(), num_heads=129) == triton.get_path()
    assert choose(triton, wanted(), num_heads=16) == triton.get_path()
    assert choose(None, wanted(head_size=128, use_mla=False)) == triton.get_path()
    # By its name, too, which an engine's processes know without the plugin.
    assert AttentionBackendEnum["CUSTOM"].get_class() is ours and ours.get_name() == "CUSTOM"
    assert choose(AttentionBackendEnum.CUSTOM, wanted(), num_heads=16) == path


def test_another_plugins_backend_keeps_its_name(platform):
    registry.register_backend(AttentionBackendEnum.CUSTOM, "another.Backend")
    latent_gpu.install()
    assert AttentionBackendEnum.CUSTOM.get_path() == "another.Backend"
    assert platform.get_attn_backend_cls(None, wanted(), 16).endswith("MlaDecodeBackend")


def test_graphs_have_as_many_new_tokens_as_the_operator_takes():
    support = latent_gpu.MlaDecodeBuilder.get_cudagraph_support
    assert support(config(), None) == support(config(7), None) == AttentionCGSupport.UNIFORM_BATCH
    assert support(config(8), None) == AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE


# --- its parts ---


def attention(heads: int = 5, kind: type = latent_gpu.MlaDecodeImpl, **changes):
    plain = dict.fromkeys(("alibi_slopes", "sliding_window", "logits_soft_cap", "kv_sharing_target_layer_name"))
    sizes = dict(q_lora_rank=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, qk_head_dim=192)
    given = plain | sizes | dict(v_head_dim=128, kv_b_proj=None, kv_cache_dtype="auto", attn_type="decoder")
    with set_current_vllm_config(VllmConfig()):
        return kind(heads, 576, 192**-0.5, 1, **given | changes)


def test_what_it_lacks_is_one_line():
    for changes, what in (
        (dict(sliding_window=4096), "no sliding_window"),
        (dict(attn_type="encoder"), "no encoder attention"),
        (dict(kv_lora_rank=256), r"no latent and rotated sizes of \(256, 64\)"),
        (dict(heads=129), "no 129 heads"),
    ):
        with pytest.raises(NotImplementedError, match=f"mla_decode: {what}; name another backend"):
            attention(**changes)


def by_definition(q, cache, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """q: [S, H, 576]; cache: float64 [length, 576], the S new tokens at its end. Returns: float64 (out, lse)."""
    new, length = len(q), len(cache)
    score = q.double() @ cache.t() * 192**-0.5  # [S, H, length]
    if causal:
        places = torch.arange(length, device=q.device)
        behind = places > places[length - new :].unsqueeze(1)
        score.masked_fill_(behind.unsqueeze(1), -torch.inf)
    return torch.softmax(score, -1) @ cache[:, :512], torch.logsumexp(score, -1)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("new", "causal"), [(1, True), (4, True), (8, True), (3, False), (8, False), (12, False)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_several_new_tokens_are_the_definition(new, causal, fp8, dtype, generator):
    """Four sequences, of which the last is a graph's padding: no tokens, and pages that are none."""
    ours, page = attention(heads := 5), 16
    ours.need_to_return_lse_for_decode = True  # as decode context parallelism asks for
    lengths = torch.tensor([new, 17 + new, 45, 0], dtype=torch.int32)
    table = torch.randperm(16, generator=generator)[:12].view(4, 3).to(torch.int32)
    table[3] = 10**6
    kv = torch.randn(int(lengths.sum()) + 3, 512, generator=generator).to(dtype)
    k_pe = torch.randn(len(kv), 1, 64, generator=generator).to(dtype)
    slots = [int(table[b, n // page]) * page + n % page for b in range(3) for n in range(int(lengths[b]))]
    scale = torch.tensor(0.03)
    cache = torch.zeros(16, page, 576, dtype=torch.uint8 if fp8 else dtype)
    kv, k_pe, scale, cache, lengths, table = (each.to(DEVICE) for each in (kv, k_pe, scale, cache, lengths, table))
    # The last two tokens are padding that has no slots, the first one has none by its slot.
    ours.do_kv_cache_update(kv, k_pe, cache, torch.tensor([-1, *slots], device=DEVICE), "fp8" if fp8 else "auto", scale)
    stored = torch.cat([kv, k_pe.squeeze(1)], -1)[1 : 1 + len(slots)]
    if fp8:
        largest = torch.finfo(FP8).max
        codes = (stored.float() / scale).clamp(-largest, largest).to(FP8)
        assert torch.equal(cache.view(-1, 576)[slots], codes.view(torch.uint8))
        stored = codes.double() * scale.double()
    else:
        assert torch.equal(cache.view(-1, 576)[slots], stored)

    q = torch.randn(4 * new, heads, 576, generator=generator).to(DEVICE, dtype)
    metadata = SimpleNamespace(decode=SimpleNamespace(block_table=table, seq_lens=lengths), causal=causal)
    layer = SimpleNamespace(_k_scale=scale)
    out, lse = ours.forward_mqa(q, cache.view(FP8) if fp8 else cache, metadata, layer)
    assert out.shape == (4 * new, heads, 512) and out.dtype == dtype
    assert lse.shape == (4 * new, heads) and lse.dtype == torch.float32
    in_parts, _ = ours.forward_mqa(q.split([512, 64], dim=-1), cache, metadata, layer)
    assert torch.equal(in_parts, out)
    assert not out[3 * new :].any() and (lse[3 * new :] == -torch.inf).all()
    for b, tokens in enumerate(stored.double().split(lengths[:3].tolist())):
        of_b = slice(b * new, (b + 1) * new)
        expected, expected_lse = by_definition(q[of_b], tokens, causal)
        bound = 2.0**-6 if fp8 else 2.0**-7  # of the result's rounding; FP8: of c's
        torch.testing.assert_close(out[of_b].double(), expected, rtol=bound, atol=bound)
        torch.testing.assert_close(lse[of_b].double(), expected_lse, rtol=2.0**-10, atol=2.0**-9)


@of_cpus_alone
def test_on_a_cpu_it_computes_what_vllms_does(generator):
    """Three sequences write their tokens, then one more each, which is decoded; pages are in no order."""
    heads = 5
    theirs, ours = (attention(heads, CPUMLAImpl) for _ in range(2))
    ours.__class__ = latent.LatentDecode
    lengths = torch.tensor([1, 17, 40], dtype=torch.int32)
    table = torch.randperm(12, generator=generator)[:9].view(3, 3).to(torch.int32)
    kv = torch.randn(int(lengths.sum()) + 2, 512, generator=generator).bfloat16()
    k_pe = torch.randn(len(kv), 1, 64, generator=generator).bfloat16()
    slots = [int(table[b, n // 16]) * 16 + n % 16 for b in range(3) for n in range(int(lengths[b]))]
    slots = torch.tensor([-1, *slots, -1])  # what is computed for nothing is not written
    caches = [torch.zeros(12, 16, 576).bfloat16() for _ in range(2)]
    for each, cache in zip((theirs, ours), caches):
        each.do_kv_cache_update(kv, k_pe, cache, slots, "auto", torch.ones(()))
    assert torch.equal(*caches) and caches[0].any()

    q = torch.randn(3, heads, 576, generator=generator).bfloat16()
    metadata = SimpleNamespace(decode=SimpleNamespace(block_table=table, seq_lens=lengths), causal=True)
    out, nothing = ours.forward_mqa(q, caches[1], metadata, None)
    assert nothing is None and out.shape == (3, heads, 512)
    assert torch.equal(out, ours.forward_mqa(q.split([512, 64], dim=-1), caches[1], metadata, None)[0])
    for b in range(3):
        seen = caches[0][table[b].long()].flatten(0, 1)[: int(lengths[b])].double()
        # One rounding to bfloat16, of the result and of nothing else that is as large.
        expected, _ = by_definition(q[b : b + 1], seen, True)
        torch.testing.assert_close(out[b : b + 1].double(), expected, rtol=2.0**-7, atol=2.0**-7)


@of_cpus_alone
def test_other_sizes_on_a_cpu_stay():
    linear, wide = (SimpleNamespace(params_dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    assert latent._can_decode(SimpleNamespace(impl=attention(4, CPUMLAImpl), kv_b_proj=linear))
    assert not latent._can_decode(SimpleNamespace(impl=attention(4, CPUMLAImpl), kv_b_proj=wide))
    for name, value in (
        *(("__class__", latent.LatentDecode), ("kv_lora_rank", 256), ("qk_rope_head_dim", 32)),
        *(("kv_cache_dtype", "fp8"), ("num_heads", 129)),
    ):
        theirs = attention(4, CPUMLAImpl)
        setattr(theirs, name, value)
        assert not latent._can_decode(SimpleNamespace(impl=theirs, kv_b_proj=linear))


def test_nothing_is_written_while_memory_is_measured():
    kv, k_pe = torch.ones(2, 512).bfloat16(), torch.ones(2, 1, 64).bfloat16()
    attention().do_kv_cache_update(kv, k_pe, torch.tensor([]), torch.tensor([0, 1]), "auto", torch.ones(()))


def test_vllm_033_says_whether_a_scale_is_one(generator):
    kv, k_pe = (torch.randn(2, *shape, generator=generator).to(DEVICE).bfloat16() for shape in ((512,), (1, 64)))
    for implementation in (latent_gpu.MlaDecodeImpl, latent.LatentDecode):
        cache = torch.zeros(1, 2, 576, dtype=torch.uint8, device=DEVICE)
        slots, scale = torch.tensor([0, 1], device=DEVICE), torch.ones((), device=DEVICE)
        implementation.do_kv_cache_update(None, kv, k_pe, cache, slots, "fp8", scale, skip_scale=True)
        assert cache.any()


# --- engines on a CPU, in which it takes the place of the CPU's backend ---


@pytest.fixture
def in_the_cpus_place(monkeypatch):
    path = f"{latent_gpu.__name__}.{latent_gpu.MlaDecodeBackend.__name__}"
    monkeypatch.setattr(type(current_platform), "get_attn_backend_cls", classmethod(lambda cls, *a, **k: path))
    selector._cached_get_attn_backend.cache_clear()
    yield
    selector._cached_get_attn_backend.cache_clear()


@of_cpus_alone
@pytest.mark.parametrize(
    "arguments",
    [
        dict(),
        full(dict(block_size=48, dtype="float16")),
        full(dict(block_size=512)),
        # Several new tokens a sequence. With 128 a step vLLM 0.32 schedules nothing, for ever, by its own backend too.
        dict(
            speculative_config=dict(method="ngram", num_speculative_tokens=3, prompt_lookup_max=4, prompt_lookup_min=1),
            async_scheduling=False,
            max_num_batched_tokens=512,
        ),
        # What vLLM's CPU lacks is a prompt's context in FP8: no prompt is cut, were all in one step (869 tokens).
        dict(kv_cache_dtype="fp8", max_num_batched_tokens=1024, enable_prefix_caching=False),
    ],
    ids=str,
)
def test_an_engine_decodes_likely_tokens(arguments, in_the_cpus_place, engine):
    """Long prompts in parts, and those of a second turn found in the cache."""
    llm = engine("byte DeepSeek", **dict(enforce_eager=True, enable_prefix_caching=True) | arguments)
    model, before, code = byte_deepseek(), counts(llm), text(1, 512)[0].tolist()
    for _ in range(2):
        decodes(llm, model, 32, 0.98, [*many_lengths()[:5], code[:280] + code[5:20]])
    appended, attended = (counts(llm)[each] - before.get(each, 0) for each in ("mla_append", "mla_decode"))
    steps = 8 if "speculative_config" in arguments else 31  # at least, in each turn
    assert appended > attended >= 2 * steps * 4
