//! Every page with made-up data: one VM and a thousand, hostile names, structure and size.

use std::time::Instant;

use askama::Template;
use serde_json::{Value, json};

use super::forms::Forms;
use super::frame::Frame;
use super::orders::{OrderPage, OrderQuery, Target};
use super::pages::{
    MachinesPage, NodePage, NodesPage, Overview, PoliciesPage, PolicyPage, SetPage, SetsPage,
    VmPage, VmsPage, VmsQuery, WINDOWS, Window,
};
use super::paths::path_of;
use super::snapshot::{SetState, Snapshot, VmSettings};
use crate::commands::policy::state::Agents;
use crate::decision::{Decisions, sample};
use crate::view::node;
use crate::view::vm::{self, Beside, VmView};

/// Bound of a page of a thousand VMs, bytes.
const PAGE_BYTES: usize = 100 << 10;
const HOSTILE: &str = "<script>alert('x')</script>\" onload=\"x";

fn vm_object(name: &str) -> Value {
    let mut object = vm::tests::object();
    object["metadata"]["name"] = json!(name);
    object["metadata"]["annotations"] = json!({"autoscaling.neon.tech/mode": "grow"});
    object
}

fn policy_object(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"scope": "vm", "source": format!("-- {HOSTILE}\nreturn function(i) return std.hold('x') end"),
            "params": {"headroom": 1.15}, "limits": {"maxUnits": 16}},
        "status": {"live": {"digest": "5be1a7c0".repeat(8), "since": "2026-01-02T03:00:00Z"}},
    })
}

/// A set whose upgrade has halted. Its members are the VMs.
fn set_object(name: &str) -> Value {
    let template = json!({"spec": {"guest": {"rootDisk": {"image": HOSTILE}}}});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": "u"},
        "spec": {"replicas": 3, "version": 2, "template": template, "kv": {"mode": HOSTILE}},
        "status": {"replicas": 2, "readyReplicas": 1, "updatedReplicas": 1, "version": 1,
            "newest": 3, "upgrade": {"to": 2, "ordinal": 0, "halted": HOSTILE},
            "versions": [{"version": 1, "template": template}, {"version": 2, "template": template}],
            "conditions": [{"type": "UpgradeHalted", "status": "True", "reason": "Member",
                "message": HOSTILE}]},
    })
}

fn set_states(name: &str, vms: &[Value]) -> Vec<SetState> {
    let member = |vm: &Value| {
        let mut vm = vm.clone();
        vm["metadata"]["labels"] = json!({"policy.bellows.dev/set": name});
        let owner = json!({"kind": "VirtualMachineSet", "name": name, "uid": "u"});
        vm["metadata"]["ownerReferences"] = json!([owner]);
        vm["metadata"]["annotations"] = json!({"policy.bellows.dev/set-version": "1"});
        vm
    };
    let members: Vec<Value> = vms.iter().map(member).collect();
    SetState::all(vec![set_object(name)], &members)
}

fn node_object() -> Value {
    let mut node = node::tests::node();
    node["metadata"]["name"] = json!("node-a");
    node
}

/// A state of VMs with the names `vm-0000` and so on, a node and a policy.
pub(super) fn snapshot(vms: usize) -> Snapshot {
    let names: Vec<String> = (0..vms).map(|number| format!("vm-{number:04}")).collect();
    of_names(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

fn of_names(names: &[&str]) -> Snapshot {
    let objects: Vec<Value> = names.iter().map(|name| vm_object(name)).collect();
    let mut decision = sample();
    decision.policy = serde_json::from_value(json!({"name": "db", "digest": "77ab90c4",
        "role": "shadow", "answer": {"cu": 4, "reason": "cpu", "since": "2026-01-02T03:00:00Z"}}))
    .ok();
    let decisions: Decisions = names
        .iter()
        .map(|name| (format!("default/{name}"), decision.clone()))
        .collect();
    let beside = Beside {
        decisions: decisions.clone(),
        resizes: vm::tests::resizes(),
        now: vm::tests::now(),
        ..Beside::default()
    };
    let vms = vm::views(&objects, &beside);
    let settings = vms.iter().map(VmView::key);
    let settings = settings.zip(objects.iter().map(VmSettings::of)).collect();
    Snapshot {
        at: vm::tests::now(),
        taken: Some(Instant::now()),
        vms,
        settings,
        nodes: node::nodes(&[node_object()], &[], vm::tests::now()),
        agents: Agents::new(Value::Null, decisions),
        policies: vec![policy_object("db")],
        sets: set_states("vm", &objects),
        resizes: vm::tests::resizes(),
        peers: peers(names.len().min(16)),
        ..Snapshot::default()
    }
    .complete()
}

/// A status of machines, the first of which leads.
fn peers(machines: usize) -> Value {
    let machine = |number: usize| {
        json!({"id": format!("m{number:02}"), "address": "10.0.0.1:7946", "alive": number < 3,
            "leads": number == 0, "this": number == 1, "rtt_ms": 1.25, "last_response_s": 3.0,
            "units_free": 7, "counts": {"web": 2}, "release": HOSTILE})
    };
    let machines: Vec<Value> = (0..machines).map(machine).collect();
    json!({"role": "follows", "reason": "", "expected": machines.len(), "dropped": 0,
        "wanted": {HOSTILE: 3}, "peers": machines})
}

fn frame(title: &str, state: &Snapshot) -> Frame {
    Frame {
        refreshes: Some(true),
        ..Frame::new(title, "/", state)
    }
}

fn vm_page(state: &Snapshot, vm: &VmView) -> String {
    let page = VmPage::new(frame("vm", state), state, vm, Ok(told()), WINDOWS[1]);
    page.render().expect("a page")
}

/// An hour in which the need grew.
fn told() -> super::pages::VmJournal {
    let mut told = super::pages::VmJournal::default();
    let now = vm::tests::now().0;
    told.past.needs = (0..720)
        .map(|step| crate::past::Need {
            unix_us: now - (720 - step) * 5_000_000,
            load1: 0.001 * step as f64,
            used: 4_000_000.0 * step as f64,
        })
        .collect();
    told
}

/// All pages of a state, by name.
fn pages(state: &Snapshot) -> Vec<(&'static str, String)> {
    let vm = &state.vms[0];
    let order_of = |path: &str, count: &str| {
        let target = Target::of(path).expect("an order");
        let fields = Forms::default().make(path);
        let query = OrderQuery {
            count: count.into(),
        };
        let page = OrderPage::new(state, &target, (path.into(), &query), fields);
        page.render().expect("a page")
    };
    let order = |path: &str| order_of(path, "");
    let set = &state.sets[0];
    let file = Ok(format!("vm-0 - 1 down\n{HOSTILE}\n"));
    let set_page = SetPage::new(frame("web", state), set, file);
    let set_path = path_of(&["sets", "default", &set.view.name]);
    let policy = PolicyPage::new(
        frame("db", state),
        state,
        &state.policies[0],
        Ok(Some("return 1".into())),
    );
    let query = VmsQuery::default();
    let node = NodePage::new(frame("node-a", state), state, "node-a", &query);
    let vm_path = path_of(&["vms", &vm.namespace, &vm.name]);
    vec![
        (
            "overview",
            Overview::new(frame("Overview", state), state)
                .render()
                .expect("a page"),
        ),
        (
            "vms",
            VmsPage::new(frame("VMs", state), state, &query)
                .render()
                .expect("a page"),
        ),
        ("vm", vm_page(state, vm)),
        (
            "nodes",
            NodesPage::new(frame("Nodes", state), state)
                .render()
                .expect("a page"),
        ),
        (
            "machines",
            MachinesPage::new(frame("Machines", state), state)
                .render()
                .expect("a page"),
        ),
        ("node", node.expect("the node").render().expect("a page")),
        (
            "policies",
            PoliciesPage::new(frame("Policies", state), state)
                .render()
                .expect("a page"),
        ),
        ("policy", policy.render().expect("a page")),
        ("promote", order("/policies/db/promote")),
        ("pause", order("/policies/db/pause")),
        ("bounds", order(&format!("{vm_path}/bounds"))),
        ("mode", order(&format!("{vm_path}/mode"))),
        ("drain", order("/nodes/node-a/drain")),
        ("undrain", order("/nodes/node-a/undrain")),
        (
            "sets",
            SetsPage::new(frame("Sets", state), state)
                .render()
                .expect("a page"),
        ),
        ("set", set_page.render().expect("a page")),
        ("scale", order(&format!("{set_path}/scale"))),
        ("scale to", order_of(&format!("{set_path}/scale"), "900")),
        ("scale odd", order_of(&format!("{set_path}/scale"), HOSTILE)),
        ("upgrade", order(&format!("{set_path}/upgrade"))),
        ("undo", order(&format!("{set_path}/undo"))),
    ]
}

/// Requirement: V35
#[test]
fn resize_that_a_later_one_overtook_is_not_under_way() {
    let mut state = snapshot(1);
    let mut later = state.resizes[0].clone();
    later.start_unix_us += 1_000_000;
    state.resizes.insert(0, later);
    let page = Overview::new(frame("Overview", &state), &state);
    let page = page.render().expect("a page");
    assert_eq!(page.matches("under way for 163 ms").count(), 1, "{page}");
    assert_eq!(
        page.matches("overtaken by a later one after 163 ms")
            .count(),
        1
    );
}

#[test]
fn page_of_a_thousand_vms_is_small() {
    for vms in [1, 1_000] {
        for (name, page) in pages(&snapshot(vms)) {
            let bytes = page.len();
            assert!(bytes <= PAGE_BYTES, "{name} with {vms} VMs: {bytes} bytes");
        }
    }
}

#[test]
fn every_page_has_a_title_one_heading_and_a_label_for_each_field() {
    for (name, page) in pages(&snapshot(2)) {
        assert_eq!(page.matches("<h1>").count(), 1, "{name}");
        assert_eq!(page.matches("<title>").count(), 1, "{name}");
        assert!(page.contains("<html lang=\"en\">"), "{name}");
        assert!(
            page.contains("href=\"#main\"") && page.contains("id=\"main\""),
            "{name}"
        );
        assert!(
            !page.contains(" style=") && !page.contains("<script"),
            "{name}"
        );
        assert!(
            !page.contains("src=\"http") && !page.contains("href=\"http"),
            "{name}"
        );
        for field in page.split("<input").skip(1) {
            let field = field.split('>').next().unwrap_or_default();
            if field.contains("type=\"hidden\"") {
                continue;
            }
            let id = field
                .split("id=\"")
                .nth(1)
                .and_then(|id| id.split('"').next());
            let label = format!("for=\"{}\"", id.expect("an id"));
            assert!(page.contains(&label), "{name}: {label}");
        }
        let open = page.matches("<section").count();
        assert_eq!(open, page.matches("</section>").count(), "{name}");
    }
}

#[test]
fn ids_of_a_page_are_unique() {
    for (name, page) in pages(&snapshot(2)) {
        let mut ids: Vec<&str> = page
            .split(" id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "{name}: {ids:?}");
    }
}

#[test]
fn hostile_names_are_text() {
    let mut state = of_names(&[HOSTILE]);
    state.nodes[0].name = HOSTILE.into();
    state.vms[0].node = Some(HOSTILE.into());
    state.vms[0].problem = Some(HOSTILE.into());
    state.policies = vec![policy_object(HOSTILE)];
    state.sets = set_states(HOSTILE, &[vm_object(HOSTILE)]);
    let mut state = state.complete();
    state.nodes[0].name = "node-a".into();
    for (name, page) in pages(&state) {
        assert!(!page.contains("<script"), "{name}");
        assert!(!page.contains("\" onload"), "{name}");
    }
}

/// Requirement: V35
#[test]
fn v35_page_of_machines_has_state_room_and_last_response_of_each() {
    let page = |state: &Snapshot| {
        let page = MachinesPage::new(frame("Machines", state), state);
        page.render().expect("a page")
    };
    let mut state = snapshot(5);
    let shown = page(&state);
    for part in [
        "m00",
        "leads",
        "alive, this",
        "dead",
        "3.0 s ago",
        "web=2",
        "Here this machine follows",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    state.peers = Value::Null;
    let alone = page(&state);
    assert!(
        alone.contains("--peers-listen") && !alone.contains("<table"),
        "{alone}"
    );
}

#[test]
fn filter_selects_and_pages_are_of_a_hundred() {
    let state = snapshot(250);
    let shown = |query: VmsQuery| {
        let page = VmsPage::new(frame("VMs", &state), &state, &query);
        page.render().expect("a page")
    };
    let query = |q: &str, page: &str| -> VmsQuery {
        serde_json::from_value(json!({"q": q, "page": page})).expect("a query")
    };
    let last = shown(query("", "3"));
    assert!(last.contains("VMs 201 to 250 of 250") && last.contains("vm-0249"));
    assert!(!last.contains("vm-0199"));
    for odd in ["0", "99", "x", "-1"] {
        assert!(shown(query("", odd)).contains(" of 250"), "{odd}");
    }
    let one = shown(query("vm-0042", ""));
    assert!(one.contains("One VM") && one.contains("vm-0042"));
    assert!(shown(query("nothing", "")).contains("There is none."));
}

#[test]
fn picture_shows_need_and_bounds_in_words_and_figures() {
    let state = snapshot(1);
    let page = vm_page(&state, &state.vms[0]);
    assert!(page.contains("Bounds: 1Gi to 8Gi."), "{page}");
    assert!(page.contains("class=\"need\" d=\"M0.5 "), "{page}");
    assert!(page.contains("<th scope=\"row\">03:04:05</th>"), "{page}");
}

#[test]
fn picture_of_a_young_vm_begins_with_it() {
    let seconds = |value: &str, age_s| Window::of(value, age_s).seconds;
    for (value, age_s, expected) in [
        ("", Some(10), 60),
        ("", Some(600), 600),
        ("life", Some(600), 600),
        ("24h", Some(600), 86_400),
        ("", Some(3_600), 3_600),
        ("life", Some(u64::MAX), 3_600),
        ("", None, 3_600),
    ] {
        assert_eq!(seconds(value, age_s), expected, "{value:?} {age_s:?}");
    }
}

/// Requirement: V35
#[test]
fn v35_set_shows_its_halted_upgrade_its_orders_and_what_they_would_do() {
    let state = snapshot(2);
    let all = pages(&state);
    let page = |wanted: &str| {
        let found = all.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, page)| &**page).expect("the page")
    };
    for words in [
        "has halted",
        "1 are up",
        "To version 2: 1 of 3 members have it.",
        "/sets/default/vm/scale",
        "/sets/default/vm/upgrade",
        "/sets/default/vm/undo",
        "/vms/default/vm-0001",
    ] {
        assert!(page("set").contains(words), "no {words:?}: {}", page("set"));
    }
    assert!(
        page("overview").contains("/sets/default/vm"),
        "it needs attention"
    );
    let (asks, planned, odd) = (page("scale"), page("scale to"), page("scale odd"));
    assert!(asks.contains("method=\"get\"") && !asks.contains("name=\"token\""));
    assert!(
        planned.contains("name=\"count\" value=\"900\""),
        "{planned}"
    );
    assert!(planned.contains("name=\"shown\" value=\"3\""), "{planned}");
    assert!(planned.contains("Reason, for the history"), "{planned}");
    assert!(odd.contains("is no number of members") && !odd.contains("name=\"token\""));
    assert!(page("upgrade").contains("name=\"shown\" value=\"3\""));
    assert!(page("undo").contains("name=\"shown\" value=\"1\""));
}

#[test]
fn live_version_stands_beside_the_candidate() {
    let state = snapshot(1);
    let page = pages(&state)
        .into_iter()
        .find(|(name, _)| *name == "policy");
    let (_, page) = page.expect("the page");
    assert_eq!(page.matches("<article").count(), 2, "{page}");
    assert!(
        page.contains("5be1a7c0") && page.contains("it decides nothing"),
        "{page}"
    );
    assert!(page.contains("/policies/db/promote") && page.contains("/policies/db/demote"));
}
