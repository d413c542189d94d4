"""Token buckets against a plain model in whole numbers."""

from __future__ import annotations

import random
from fractions import Fraction

from gantry_broker.access.quota import Bucket, Meter


def test_a_bucket_gives_what_the_model_gives() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        rate = rng.choice([1, 10, 1_000])
        bucket = Bucket(rate, 0.0)
        left, now = Fraction(rate), Fraction(0)
        for _ in range(60):
            step = Fraction(rng.choice([0, 0, 1, 16, 64]), 64)
            now, left = now + step, min(left + step * rate, Fraction(rate))
            passes = bucket.has_some(float(now))
            assert passes == (left > 0), (seed, now)
            if passes:
                amount = rng.choice([1, rate // 2 + 1, rate * 2])
                bucket.take(amount)
                left -= amount


def test_no_more_than_the_rate_over_a_long_time() -> None:
    rng = random.Random(1)
    bucket, now, sent = Bucket(1_000, 0.0), 0.0, 0
    while now < 100:
        now += rng.random() / 50
        if bucket.has_some(now):
            bucket.take(300)
            sent += 300
    assert 99_000 <= sent <= 1_000 * 101 + 300


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(10, 100.0)
    bucket.take(20)
    assert not bucket.has_some(100.5)
    assert not bucket.has_some(50.0)
    assert not bucket.has_some(100.9)
    assert bucket.has_some(101.2)


def test_both_limits_of_a_meter_count() -> None:
    meter = Meter(1_000, 2, 0.0)
    meter.take(10, 3)
    assert not meter.has_some(0.1)
    assert meter.has_some(0.9)
    meter.take(5_000, 1)
    assert not meter.has_some(3.0)
    assert meter.has_some(5.5)
