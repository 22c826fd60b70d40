"""Every limit among the settings reaches the component that keeps it."""

from msgspec.structs import replace

from serving.admission import AdmissionLimits
from serving.app import _admission_limits, _body_limits, _decoder_pool
from serving.bodies import BodyLimits
from serving.decoding.pool import DecodeLimits
from serving.metrics import Metrics


def test_limits_of_the_settings_reach_their_components(settings):
    chosen = replace(
        settings,
        max_picture_bytes=1_001,
        max_request_bytes=1_002,
        max_requests=3,
        max_held_bytes=1_004,
        max_wait_s=5.5,
        num_decoders=6,
        client_share=0.7,
        upload_s=8.5,
        decode_s=10.5,
        decode_budget_bytes=1_012,
    )
    assert _body_limits(chosen) == BodyLimits(1_001, 1_002, 5, upload_s=8.5)
    assert _admission_limits(chosen) == AdmissionLimits(3, 1_004, 5.5, num_decoders=6, client_share=0.7)
    pool = _decoder_pool(chosen, Metrics())
    assert pool._limits == DecodeLimits(picture_bytes=1_001, budget_bytes=1_012, seconds=10.5)


def test_a_gpu_accepts_more_requests_unless_the_operator_says_how_many(settings):
    for provider, default in (("cpu", 64), ("cuda", 512)):
        assert _admission_limits(replace(settings, provider=provider)).num_requests == default
        assert _admission_limits(replace(settings, provider=provider, max_requests=3)).num_requests == 3
