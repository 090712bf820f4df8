"""Turn a vLLM page into one record per engine, whatever version and exporter wrote it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import Final, NamedTuple

from kvheadroom.errors import SourceError
from kvheadroom.node.page_reader import PageReader, Sample
from kvheadroom.node.vllm_names import COMPANION_PREFIXES, MEANING_OF, PREFIXES, Meaning, Reading
from kvheadroom.readings import EngineReading, HistogramReading, ServerReading, SilentReason

# More than any server has; each engine becomes label values of ours.
_MAX_ENGINES: Final = 512
# A usage is a quotient of block counts; what is beyond is no ratio, and we cannot know what it is.
_MAX_RATIO: Final = 1.0001
_GAUGES: Final = frozenset[Reading]({"requests_running", "requests_waiting", "kv_used_ratio"})

_FAMILY: Final = re.compile(
    rb"""^(?:\#\ TYPE\ )?([a-zA-Z_:][a-zA-Z0-9_:]{0,99}+)
        (?:\ (?:counter|gauge|histogram|summary|untyped)
          |(?:\{.*\})?[ \t]++[-+]?(?:[0-9][0-9.eE+-]*+|NaN|Inf)(?:[ \t]++-?[0-9]++)?)
        [ \t\r]*+$""",
    re.MULTILINE | re.VERBOSE,
)


class _Found(NamedTuple):
    """One sample and what it stands for; a tuple, because a page makes hundreds of them."""

    meaning: Meaning
    labels: Mapping[str, str]
    value: float


# Label values of ours that come from a page are bounded in number and in length.
_WAITING_REASONS: Final = frozenset({"capacity", "deferred"})
_MAX_NAME_CHARACTERS: Final = 512

_EngineKey = tuple[str, str]  # Ray's replica, empty where there is none, and the rank
_ByReading = Mapping[Reading, Sequence[_Found]]


def read_server_page(
    page: bytes, reader: PageReader, *, served_name: str | None = None
) -> ServerReading:
    """Return what *page* tells of its server; what only other endpoints know stays ``None``.

    Args:
        page: Body of ``/metrics``.
        reader: Reader that wants the names of ``vllm_names.MEANING_OF``.
        served_name: The model the server says it serves; decides where a page has several.

    Raises:
        SourceError: ``not_metrics`` when this is no exposition, or that of another program;
            ``truncated`` when it breaks off; ``too_large`` when it names absurdly many engines.
    """
    _require_exposition(page)
    samples = reader.read(page)
    engines = _engines(samples, served_name)
    silent: SilentReason | None = None
    if not engines:
        silent = _silence_without_engines(page)
    elif _GAUGES.isdisjoint(MEANING_OF[series.name].reading for series, _ in samples):
        silent = "before_first_traffic"
    return ServerReading(engines, silent=silent, started_unix_seconds=_started(samples))


def _require_exposition(page: bytes) -> None:
    start = page[:1024].lstrip()
    if not start:
        raise SourceError("not_metrics", "an empty answer")
    if start.startswith(b"<"):
        raise SourceError("not_metrics", "an HTML page instead of metrics")
    if start.startswith((b"{", b"[")):
        raise SourceError("not_metrics", "JSON instead of metrics")
    if _FAMILY.search(page) is None:
        raise SourceError("not_metrics", "text that is no exposition")
    if not page.endswith(b"\n"):
        raise SourceError("truncated", "the page breaks off in the middle of a line")


def _silence_without_engines(page: bytes) -> SilentReason | None:
    """Tell a vLLM server that keeps its statistics to itself from another program's page."""
    for match in _FAMILY.finditer(page):
        family = match[1].decode()
        if family.startswith(PREFIXES):
            return None
        if not family.startswith(COMPANION_PREFIXES):
            raise SourceError("not_metrics", f"metrics of another program, such as {family}")
    return "log_stats_disabled"


def _started(samples: Iterable[Sample]) -> float | None:
    for series, value in samples:
        if MEANING_OF[series.name].reading == "started_unix_seconds":
            return value if isfinite(value) else None
    return None


# --- whose sample is it -----------------------------------------------------------------------


def _engines(samples: Iterable[Sample], served_name: str | None) -> tuple[EngineReading, ...]:
    found_of: dict[_EngineKey, list[_Found]] = defaultdict(list)
    shared_config: Mapping[str, str] | None = None
    for series, value in samples:
        meaning = MEANING_OF[series.name]
        if meaning.reading == "started_unix_seconds":
            continue
        if meaning.reading == "cache_config" and "engine" not in series.labels:
            shared_config = series.labels
            continue
        labels = series.labels
        key = labels.get("ReplicaId", ""), labels.get("engine") or "0"
        found_of[key].append(_Found(meaning, labels, value))
    if len(found_of) > _MAX_ENGINES:
        raise SourceError("too_large", f"the page names {len(found_of)} engines")
    if shared_config is not None and not found_of:
        found_of["", "0"] = []
    several_replicas = len({replica for replica, _ in found_of}) > 1
    return tuple(
        _engine(
            f"{replica}:{rank}" if several_replicas else rank,
            replica or None,
            _of_one_model(found_of[replica, rank], served_name),
            shared_config,
        )
        for replica, rank in sorted(found_of, key=_order)
    )


def _order(key: _EngineKey) -> tuple[str, float, str]:
    """Sort ranks as the numbers they are, and what is no number after them."""
    replica, rank = key
    number = float(rank) if rank.isascii() and rank.isdecimal() else inf
    return replica, number, rank


def _of_one_model(found: list[_Found], served_name: str | None) -> list[_Found]:
    """Return what belongs to the model the engine serves.

    An engine serves one model; a second name is left over from an earlier server that wrote into
    the same multiprocess directory. Which one lives only the server can say; else it is the busier.
    """
    busy = dict.fromkeys((each.labels.get("model_name") or "" for each in found), 0.0)
    busy.pop("", None)
    if len(busy) <= 1:
        return found
    for each in found:
        name = each.labels.get("model_name") or ""
        if name in busy and each.meaning.reading in ("requests_running", "requests_waiting"):
            busy[name] += each.value if each.value > 0 else 0.0
    chosen = served_name if served_name in busy else max(busy, key=busy.__getitem__)
    return [each for each in found if (each.labels.get("model_name") or chosen) == chosen]


# --- what the samples of one engine say -------------------------------------------------------


def _engine(
    rank: str,
    replica: str | None,
    found: Sequence[_Found],
    shared_config: Mapping[str, str] | None,
) -> EngineReading:
    of = _newest_spelling(found)
    configs = [each.labels for each in of["cache_config"]]
    names = (each.labels.get("model_name") for each in found)
    return EngineReading(
        rank=rank,
        replica=replica,
        model_name=next((name[:_MAX_NAME_CHARACTERS] for name in names if name), None),
        requests_running=_count(of["requests_running"]),
        requests_waiting=_count(of["requests_waiting"]),
        waiting_by_reason=_bounded(_counts_by(of["waiting_by_reason"], "reason")),
        kv_used_ratio=_ratio(of["kv_used_ratio"]),
        preemptions_total=_total(of["preemptions_total"]),
        prompt_tokens_total=_total(of["prompt_tokens_total"]),
        generation_tokens_total=_total(of["generation_tokens_total"]),
        finished_total=_totals_by(of["finished_total"], "finished_reason"),
        prompt_tokens=_histogram(of["prompt_tokens"]),
        generation_tokens=_histogram(of["generation_tokens"]),
        sleep_state=_state(of["sleep_state"]),
        cache_config=configs[-1] if configs else shared_config,
    )


def _bounded(counts: Mapping[str, float]) -> Mapping[str, float]:
    """Return waiting requests with every reason that is not vLLM's gathered under ``other``.

    Reasons become label values of ours, and a page may hold any number of them.
    """
    if counts.keys() <= _WAITING_REASONS:
        return counts
    known = {reason: count for reason, count in counts.items() if reason in _WAITING_REASONS}
    return known | {"other": sum(counts.values()) - sum(known.values())}


def _newest_spelling(found: Iterable[_Found]) -> _ByReading:
    newest: dict[Reading, list[_Found]] = defaultdict(list)
    for each in found:
        kept = newest[each.meaning.reading]
        if kept and each.meaning.age < kept[0].meaning.age:
            kept.clear()
        if not kept or each.meaning.age == kept[0].meaning.age:
            kept.append(each)
    return newest


def _count(found: Iterable[_Found]) -> float | None:
    """Return a gauge: the largest over the pids, since a process gone leaves its zeros behind."""
    value = max((each.value for each in found if not isnan(each.value)), default=None)
    return value if value is not None and 0 <= value < inf else None


def _ratio(found: Iterable[_Found]) -> float | None:
    value = _count(found)
    return min(value, 1.0) if value is not None and value <= _MAX_RATIO else None


def _total(found: Iterable[_Found]) -> float | None:
    """Return a counter: the sum over the pids, each of which counted its own requests."""
    by_pid = {each.labels.get("pid"): each.value for each in found}
    total = sum(by_pid.values())
    valid = bool(by_pid) and all(0 <= value < inf for value in by_pid.values())
    return total if valid else None


def _grouped(found: Iterable[_Found], label: str) -> Mapping[str, list[_Found]]:
    groups: dict[str, list[_Found]] = defaultdict(list)
    for each in found:
        groups[each.labels.get(label, "")].append(each)
    groups.pop("", None)
    return groups


def _counts_by(found: Iterable[_Found], label: str) -> dict[str, float]:
    counts = {name: _count(group) for name, group in _grouped(found, label).items()}
    return {name: count for name, count in counts.items() if count is not None}


def _totals_by(found: Iterable[_Found], label: str) -> dict[str, float]:
    totals = {name: _total(group) for name, group in _grouped(found, label).items()}
    return {name: total for name, total in totals.items() if total is not None}


def _state(found: Iterable[_Found]) -> str | None:
    return next((name for name, value in _counts_by(found, "sleep_state").items() if value), None)


def _histogram(found: Sequence[_Found]) -> HistogramReading | None:
    """Return the histogram, or ``None`` when its parts are missing or contradict each other."""
    buckets = _grouped((each for each in found if each.meaning.part == "bucket"), "le")
    total = _total(each for each in found if each.meaning.part == "sum")
    count = _total(each for each in found if each.meaning.part == "count")
    try:
        cumulative = {float(bound): _total(group) for bound, group in buckets.items()}
    except ValueError:
        return None
    count = cumulative.get(inf) if count is None else count
    cumulative.setdefault(inf, count)
    bounds = sorted(cumulative)
    counts = [cumulative[bound] for bound in bounds]
    known = [value for value in counts if value is not None]
    sound = len(known) == len(counts) and known == sorted(known) and not any(map(isnan, bounds))
    if total is None or count is None or not sound:
        return None
    return HistogramReading(tuple(bounds), tuple(known), total=total, count=count)
