import json
from pathlib import Path

import pytest

from levada.core.tfjob import TFJobPod, condition, is_retryable, tf_config

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "dragon_cases.json").read_text())


def config(case, **fields):
    given = {
        "namespace": case["namespace"],
        "servers": case["ps_replicas"],
        "max_workers": case["max_instances"],
        "task_type": case["task_type"],
        "task_index": case["task_index"],
        "cluster_domain": case["custom_cluster_domain"],
        **fields,
    }
    return tf_config(case["job"], **given)


@pytest.mark.parametrize("case", GOLDEN["tf_config"], ids=lambda c: f"{c['job']}-{c['task_type']}-{c['task_index']}")
def test_tf_config_matches_the_golden_cases(case):
    assert config(case) == case["value"]


def test_tf_config_without_parameter_servers_uses_the_given_port():
    case = GOLDEN["tf_config"][0]
    tf_config = json.loads(config(case, servers=0, port=3333))
    assert list(tf_config["cluster"]) == ["worker"]
    assert tf_config["cluster"]["worker"][0] == "job1-worker-0.default.svc:3333"


def test_exit_codes_match_the_golden_cases():
    retryable = set(GOLDEN["exit_codes"]["retryable"])
    assert {code for code in range(256) if is_retryable(code)} == retryable == {130, 137, 138, 143}
    assert not is_retryable(None)


@pytest.mark.parametrize("case", GOLDEN["status_rules"], ids=lambda case: case["id"])
def test_conditions_match_the_golden_cases(case):
    pods = [TFJobPod(*pod) for pod in case["pods"]]
    assert condition(case["plan"], pods, case["restart_policy"]) == case["condition"]


def says(restart_policy, *pods, workers=2):
    return condition({"ps": 1, "worker": workers}, [TFJobPod(*pod) for pod in pods], restart_policy)


def test_one_permanent_failure_outweighs_a_retryable_one():
    assert says("ExitCode", ("worker", 0, "Failed", 137), ("worker", 1, "Failed", 1)) == "Failed"


def test_a_killed_parameter_server_restarts_under_policy_exit_code():
    assert says("ExitCode", ("ps", 0, "Failed", 143), ("worker", 0, "Running", None)) == "Restarting"
    assert says("OnFailure", ("ps", 0, "Failed", 143), ("worker", 0, "Running", None)) == "Failed"


def test_all_workers_succeeded_without_a_chief_is_success():
    assert says("Never", ("worker", 1, "Succeeded", 0), ("worker", 2, "Succeeded", 0)) == "Succeeded"
    assert says("Never", ("worker", 1, "Succeeded", 0), ("worker", 2, "Running", None)) == "Running"


def test_parameter_servers_alone_decide_no_condition():
    assert says("Never", ("ps", 0, "Running", None), workers=0) is None
    assert says("Never", workers=0) is None
