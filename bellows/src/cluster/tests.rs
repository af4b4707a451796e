use daemon_kit::http_client::HttpError;
use hyper::http::StatusCode;

use super::*;

const AT: PodPort<'_> = PodPort {
    namespace: "kube-system",
    pod: "autoscaler-agent-x",
    port: 9100,
};

fn refused(code: u16, message: &str) -> Fail {
    let status = json!({"status": "Failure", "code": code, "message": message, "reason": "x"});
    let status = serde_json::from_value(status).expect("a status");
    unasked(AT, &ForwardError::Open(kube::Error::Api(Box::new(status))))
}

#[test]
fn missing_right_is_named_with_the_commands_that_give_it() {
    let fail = refused(403, "User \"ann\" cannot get resource \"pods/portforward\"");
    assert_eq!(fail.exit() as u8, 64);
    insta::assert_snapshot!(fail.to_string(), @r#"
    error: pod kube-system/autoscaler-agent-x: its port is not forwarded: User "ann" cannot get resource "pods/portforward"
     rule: to be shown the state of agents and scheduler takes the verbs get and create on pods/portforward in namespace kube-system; before Kubernetes 1.35 get is enough
      fix: somebody who may create roles there gives them to user NAME:
           kubectl create role bellows-state -n kube-system --verb=get,create --resource=pods/portforward
           kubectl create rolebinding bellows-state -n kube-system --role=bellows-state --user=NAME
    "#);
    assert_eq!(refused(401, "Unauthorized").exit() as u8, 64);
}

#[test]
fn missing_pod_suggests_a_retry() {
    let fail = refused(404, "pods \"autoscaler-agent-x\" not found");
    assert_eq!(fail.exit() as u8, 75);
    insta::assert_snapshot!(fail.to_string(), @r"
    error: pod kube-system/autoscaler-agent-x is gone
     rule: a part's pod is replaced when its node is drained or it is upgraded
      fix: ask again once there is a new one: kubectl bellows check
    ");
}

#[test]
fn connection_that_fails_names_the_pod_and_where_to_look() {
    let broken = HttpError::Broken("connection reset".into());
    let fail = unasked(AT, &ForwardError::Exchange(broken));
    assert_eq!(fail.exit() as u8, 75);
    insta::assert_snapshot!(fail.to_string(), @r"
    error: pod kube-system/autoscaler-agent-x: the connection ended before the answer was whole: connection reset
     rule: a part shows its state to its own pod only, to which the kubelet of its node forwards a port
      fix: ask again; if it stays so, look at pod and node: kubectl describe pod -n kube-system autoscaler-agent-x; kubectl get nodes
    ");
    let text = "is not for you".to_owned();
    let status = StatusCode::FORBIDDEN;
    for error in [
        ForwardError::Kubelet {
            port: 9100,
            text: "connection refused".into(),
        },
        ForwardError::Status { status, text },
        ForwardError::Time,
    ] {
        let fail = unasked(AT, &error);
        assert!(
            fail.what()
                .starts_with("pod kube-system/autoscaler-agent-x: it"),
            "{fail}"
        );
    }
    let fail = refused(500, "error dialing backend: connection refused");
    assert!(fail.what().contains("error dialing backend"), "{fail}");
}

#[test]
fn unready_agent_is_named_with_its_wait_reason() {
    let agent = |node: &str, status: Value| {
        json!({"metadata": {"namespace": "kube-system", "name": format!("agent-{node}")},
            "spec": {"nodeName": node}, "status": status})
    };
    let crashes = json!({"phase": "Running", "containerStatuses":
        [{"ready": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    let agents = [
        agent("n1", crashes),
        agent("n2", json!({"phase": "Pending"})),
    ];
    let fail = none_ready(&agents, Some("n1"));
    assert_eq!(fail.exit() as u8, 75);
    insta::assert_snapshot!(fail.to_string(), @r"
    error: no agent is ready on node n1: pod kube-system/agent-n1: CrashLoopBackOff
     rule: an agent on each node decides about its VMs
      fix: see why: kubectl describe pod -n kube-system agent-n1; kubectl logs -n kube-system agent-n1
    ");
    let all = none_ready(&agents, None);
    let both = "no agent is ready: pod kube-system/agent-n1: CrashLoopBackOff; \
                pod kube-system/agent-n2: Pending";
    assert_eq!(all.what(), both);
    let fail = none_ready(&agents, Some("n3"));
    assert_eq!(fail.what(), "there is no agent on node n3");
}

#[test]
fn policies_of_all_agents_are_one_list_with_the_first_problem_of_each() {
    let policies = |problem: Value, worker: Value| {
        let db = json!({"name": "db", "loaded": problem.is_null(), "problem": problem});
        json!({"known": [db], "workers": {"live": {"runs": true, "problem": worker}}})
    };
    let dump = |policies: Value| json!({"pods": [1], "policies": policies});
    let agents = [
        ("n2", dump(policies(json!("steps"), json!("missing")))),
        ("n1", dump(policies(Value::Null, Value::Null))),
        // Of an earlier version.
        ("n3", json!({"pods": [1]})),
    ];
    let joined = joined(agents.map(|(node, dump)| (node.to_owned(), dump)).to_vec());
    let expected = json!({
        "pods": [1, 1, 1],
        "policies": {
            "known": [{"name": "db", "loaded": false, "problem": "on node n2: steps"}],
            "workers": {
                "live": {"problem": "on node n2: missing"},
                "shadow": {"problem": null},
            },
        },
    });
    assert_eq!(joined, expected);
    let earlier = super::joined(vec![("n3".to_owned(), json!({"pods": []}))]);
    let problem = &earlier["policies"]["workers"]["live"]["problem"];
    assert!(problem.is_string(), "{earlier}");
}
