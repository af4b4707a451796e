//! Every page with made-up data: one VM and a thousand, hostile names, structure and size.

use std::time::Instant;

use askama::Template;
use serde_json::{Value, json};

use super::forms::Forms;
use super::frame::Frame;
use super::orders::{OrderPage, Target};
use super::pages::{
    NodePage, NodesPage, Overview, PoliciesPage, PolicyPage, VmPage, VmsPage, VmsQuery, WINDOWS,
    Window,
};
use super::paths::path_of;
use super::snapshot::{Snapshot, VmSettings};
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
        resizes: vm::tests::resizes(),
        ..Snapshot::default()
    }
    .complete()
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
    let order = |path: &str| {
        let target = Target::of(path).expect("an order");
        let page = OrderPage::new(state, &target, path.into(), Forms::default().make(path));
        page.render().expect("a page")
    };
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
    let mut state = state.complete();
    state.nodes[0].name = "node-a".into();
    for (name, page) in pages(&state) {
        assert!(!page.contains("<script"), "{name}");
        assert!(!page.contains("\" onload"), "{name}");
    }
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
