"""Lines and counters that the installed SGLang formats itself, in a process of its own and without a server."""

import json
import os
import subprocess
import sys

import pytest

from wiring.engines.sglang import SUPPORTED
from wiring.logs import read_lines, read_metrics
from wiring.logs.evidence import AcceptanceRecord, SpeedRecord
from wiring.server.cpu.launcher import cpu_environment

ROUNDS = [2, 0, 3, 1, 1, 0, 0, 2]  # drafts accepted, of 3
REQUESTS = [[12, 9], [20, 5]]  # rounds and drafts accepted

# A scheduler of nothing but the fields that SGLang's reporter reads for a decode line.
PROGRAM = """
import functools, json, logging, sys
from types import SimpleNamespace as Namespace
import wiring.server.cpu.serve
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sglang.srt.managers.scheduler_components import metrics_reporter as module
from sglang.srt.managers.scheduler_components.pool_stats_observer import PoolStats
from sglang.srt.observability import metrics_collector

rounds, requests = json.loads(sys.argv[1])
usage = Namespace(is_hybrid_swa=False, is_hybrid_ssm=False, is_hisparse=False, full_num_used=108, full_token_usage=0.01)
parts = functools.partial(PoolStats.get_decode_usage_msg_parts, usage)
scheduler = Namespace(
    spec_algorithm=Namespace(is_none=lambda: False, is_dspark=lambda: False),
    pool_stats_observer=Namespace(get_pool_stats=lambda: Namespace(get_decode_usage_msg_parts=parts)),
    disaggregation_mode=module.DisaggregationMode.NULL, waiting_queue=[], draft_worker=None, forward_ct=40,
    kv_events_publisher=Namespace(publish_kv_events=lambda: None),
)
module.get_spec = lambda: Namespace(speculative_num_draft_tokens=4, speculative_num_steps=3)
module.get_disagg = lambda: Namespace(language_only=False, encoder_transfer_backend="")
reporter = object.__new__(module.SchedulerMetricsReporter)
vars(reporter).update(
    scheduler=scheduler, current_scheduler_metrics_enabled=False, is_stats_logging_rank=True, forward_ct_decode=40,
    decode_log_interval=40, enable_mfu_metrics=False, last_decode_stats_tic=0.0, num_generated_tokens=10**9,
    _graph_backend_label="cuda graph", spec_num_accept_tokens=0, spec_num_correct_drafts=0, spec_num_forward_ct=0,
    spec_total_num_accept_tokens=0, spec_total_num_forward_ct=0, spec_num_block_accept_tokens=0, spec_num_cap_tokens=0,
)
for accepted in rounds:
    reporter.update_spec_metrics(bs=1, num_correct_drafts=accepted, num_accept_tokens=accepted + 1)
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
module.logger.addHandler(handler)
module.logger.setLevel(logging.INFO)
reporter.report_decode_stats(True, Namespace(reqs=[None], forward_iter=None))

class Unset:
    def __getattr__(self, name):
        return None

metrics_collector.get_observability = Unset
collectors, registry = metrics_collector.TokenizerMetricsCollector, CollectorRegistry()
for name, kind in (("_counter_cls", Counter), ("_gauge_cls", Gauge), ("_histogram_cls", Histogram)):
    setattr(collectors, name, staticmethod(functools.partial(kind, registry=registry)))
collector = collectors(labels={"model_name": "m"})
for verified, accepted in requests:
    collector.observe_one_finished_request(
        {"model_name": "m"}, prompt_tokens=30, generation_tokens=1 + verified + accepted, cached_tokens=0,
        e2e_latency=1.0, has_grammar=False, spec_verify_ct=verified,
    )
print(json.dumps({"lines": lines, "tok_per_s": reporter.last_gen_throughput,
                  "metrics": generate_latest(registry).decode()}))
"""


@pytest.fixture(scope="module")
def written():
    """What the installed SGLang wrote of `ROUNDS` and `REQUESTS`."""
    environment = {**cpu_environment(os.environ), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([ROUNDS, REQUESTS])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_its_own_decode_line(written):
    (line,) = [line for line in written["lines"] if "Decode batch" in line]
    found, speed = read_lines([line], version=SUPPORTED, draft_tokens=4, topk=1)
    assert isinstance(found, AcceptanceRecord) and isinstance(speed, SpeedRecord)
    assert found.accept_length == pytest.approx(1 + sum(ROUNDS) / len(ROUNDS), abs=0.005)
    assert found.proposed == 3 and not found.impossible and found.condition == {"batch": 1, "cuda_graphs": True}
    assert speed.tok_per_s == pytest.approx(written["tok_per_s"], abs=0.0051)
    wrong = read_lines([line], version="0.5.9", draft_tokens=4, topk=1)[0]
    assert "release is another" in wrong.impossible


def test_its_own_counters(written):
    records = read_metrics(written["metrics"], steps=3, topk=1)
    (found,) = [record for record in records if isinstance(record, AcceptanceRecord)]
    assert (found.rounds, found.accept_length, found.impossible) == (32, 1 + 14 / 32, "")
