"""The market: trades at random times, news that make a share busy, halts that make one silent."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from halley.demo.market import CHECK_S, INDEX, NEWS, SHARES, Market
from halley.pipeline.jobs.anomaly import WINDOW_US
from halley.settings import Pipeline


def played(market, until_s, from_s=0.0, *, hears_news=True):
    """Return all that happens in the market until a time, each with its time."""
    happened, now_s = [], from_s
    while (now_s := now_s + CHECK_S) < until_s:
        for name, data in market.until(now_s):
            happened.append((now_s, name, data))
            if name == NEWS and hears_news:
                market.rush(data, now_s)
    return happened


def market_of(seed=1):
    return Market(Random(seed), 0.0)


def test_prices_walk():
    """Each trade has its price and the change from the last one; every share is traded."""
    prices = dict(SHARES)
    for _, name, data in played(market_of(), 300.0):
        if name in SHARES:
            assert data["symbol"] == name
            assert data["price"] == pytest.approx(prices[name] + data["change"])
            assert 0 < data["price"] == pytest.approx(prices[name], rel=0.01, abs=0.02)
            assert data["size"] > 0
            prices[name] = data["price"]
    assert all(prices[name] != first for name, first in SHARES.items())


def test_it_is_no_load():
    """All shares together have about ten trades a second."""
    trades = [name for _, name, _ in played(market_of(), 600.0, hears_news=False) if name in SHARES]
    assert 4 < len(trades) / 600 < 20
    assert {*trades} == {*SHARES}


@pytest.mark.parametrize("seed", range(5))
def test_news_make_a_spike_that_the_pipeline_sees(seed):
    """In some window of ten seconds the share is busy enough for an alert, compared with its usual rate."""
    market, options = market_of(seed), Pipeline()
    quiet = played(market, 300.0, hears_news=False)
    usual = Counter(name for _, name, _ in quiet)["CEDAR"] * WINDOW_US / 1e6 / 300
    market.rush({"symbol": "CEDAR"}, 300.0)
    busy = Counter(at_s // 10 for at_s, name, _ in played(market, 330.0, 300.0) if name == "CEDAR")
    assert max(busy.values()) >= max(options.spike_events, options.spike_factor * usual)


def test_the_index_is_the_mean_of_all_prices():
    """It is published regularly, with its change from the last one."""
    prices, index = dict(SHARES), round(sum(SHARES.values()) / len(SHARES), 2)
    indices = 0
    for _, name, data in played(market_of(), 60.0):
        if name in SHARES:
            prices[name] = data["price"]
        elif name == INDEX:
            assert data["index"] == pytest.approx(sum(prices.values()) / len(prices), abs=0.01)
            assert data["index"] == pytest.approx(index + data["change"])
            index, indices = data["index"], indices + 1
    assert indices > 20


def test_news_come_every_minute_or_so_and_some_stop_a_share():
    """Headlines name a share, or announce a halt, after which a share is silent for long enough for an alert."""
    happened = played(market_of(), 1_200.0)
    news = [(at_s, data) for at_s, name, data in happened if name == NEWS]
    assert all(40 < after - before < 80 for (before, _), (after, _) in pairwise(news))
    assert any("symbol" in data for _, data in news)
    halts = [(at_s, data["headline"]) for at_s, data in news if "symbol" not in data]
    assert halts
    silent_s = Pipeline().silence_s
    for at_s, headline in halts:
        symbol = next(name for name in SHARES if name.title() in headline)
        after = [then_s for then_s, name, _ in happened if name == symbol and then_s > at_s]
        if after and not any(symbol == data.get("symbol") for then_s, data in news if at_s < then_s < after[0] + 1):
            assert after[0] - at_s > silent_s


@pytest.mark.parametrize("news", [*({"symbol": symbol} for symbol in (None, "NOBODY", 7, ["GULL"], {})), None, "GULL"])
def test_news_of_nothing_are_ignored(news):
    """Any client can publish news."""
    market = market_of()
    market.rush(news, 0.0)
    assert played(market, 30.0) == played(market_of(), 30.0)
